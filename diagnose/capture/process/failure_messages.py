"""Why nothing was captured, in one sentence with a remedy."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from diagnose.errors import CaptureError
from diagnose.text.numbers import plural

if TYPE_CHECKING:
    from diagnose.capture.process.script import Outcome
    from diagnose.capture.record.session import Session

__all__ = ["nothing_captured", "progress_made"]

CHILD_SECONDS = 1.0  # CPU time of finished child processes from which on they may well have done the training


ENDINGS = {  # how the script ended -> what happened, and what to do
    "raised": ("the script raised {error}", "Make it run first; its traceback is above."),
    "interrupted": ("it was interrupted", "Let it run longer, or wait less with --skip."),
    "killed": ("it received a signal to terminate", "Let it run longer, or wait less with --skip."),
}


def nothing_captured(session: Session, outcome: Outcome) -> CaptureError:
    """Return the error for a script that ended without a captured step; it carries the script's exit code."""
    error = CaptureError(f"No step was captured: {_reason(session, outcome)} {session.spent_at}".rstrip())
    if outcome.exit_code:
        error.exit_code = outcome.exit_code
    return error


def _reason(session: Session, outcome: Outcome) -> str:
    num_steps = session.num_steps
    if session.all_notes and session.complete:
        return " ".join(session.all_notes)
    if session.other_profilers.place and num_steps:
        return (
            f"the script runs a profiler of its own ({session.other_profilers.place}) all the time. Switch it off, "
            "or give the trace it writes to `diagnose analyze`."
        )
    if outcome.ended in ENDINGS:
        what, remedy = ENDINGS[outcome.ended]
        return f"{what.format(error=type(outcome.error).__name__)} {progress_made(session)}. {remedy}"
    if outcome.exit_code:
        return (
            f"the script exited with code {outcome.exit_code} {progress_made(session)}. Check its arguments and output."
        )
    if num_steps:
        return (
            f"the script finished {progress_made(session)}. Let it run for more steps, or wait less with --skip 2 "
            "--steps 2."
        )
    return _never_stepped(session)


def progress_made(session: Session) -> str:
    """Return how far the capture came, for a sentence about a script that ended without a recorded step."""
    if session.plan is None or not session.num_steps:
        return "before its first steps were over"
    begun = session.plan.has_begun
    where = "during the capture, before a whole step was recorded" if begun else "before the capture began"
    return f"after {plural(session.num_steps, 'step')}, {where}"


def _never_stepped(session: Session) -> str:
    if not session.listener.installed:
        return "the script never imported torch. Trace the script that trains or runs the model."
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    if children.ru_utime > CHILD_SECONDS and not session.listener.num_events:
        return (
            "the script itself made no step; its child processes may have. Start the ranks with torchrun "
            "(torchrun … -m diagnose trace train.py), which traces each of them."
        )
    if session.options.step_on != "auto":
        return f"the script never made a step by --step-on {session.options.step_on}. Leave it out, or take another."
    return (
        "the script ran no optimizer step, no DataLoader and no model more than once. "
        "Call diagnose.step() once per step in its loop."
    )

"""What a question names: prescriptions, with refusals that name what is predicted instead, and waits of a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import locate
from diagnose.changes import CHANGES
from diagnose.changes.common.prescribe import also_possible
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.frozen import NamedTuple
from diagnose.pipeline.find import find_in_rank
from diagnose.pipeline.run import analyze_captures
from diagnose.replay.graph import Transform
from diagnose.replay.predict import replay_base
from diagnose.replay.transforms import drop_waits
from diagnose.tables import Tables
from diagnose.tables.program import program_of
from diagnose.tables.syncs import blocking_calls

__all__ = ["Asked", "are_rare", "asked_prescriptions", "listed", "without_syncs_at"]


class Asked(NamedTuple):
    """A prescription and what it is for, None where that was found in several ranks together."""

    prescription: Prescription
    finding: Finding | None


def asked_prescriptions(
    t: Tables, captures: Sequence[Capture], capture: Capture, ids: Sequence[str]
) -> tuple[Asked, ...]:
    """Return the prescriptions that the ids name, as the report's cards have them.

    Raises:
        UsageError: there is no such prescription, or what it saves is not predicted.
    """
    if not ids:
        return ()
    # Found in the very window that is replayed: tasks of one window mean nothing in the other.
    has_lines = t.trace is capture.attribution
    alone = replace(capture, trace=t.trace, attribution=None) if has_lines else capture
    found = find_in_rank(alone, t.analyses)
    shared = analyze_captures(captures, draw=False).prescriptions if len(captures) > 1 else ()  # those of all ranks too
    program = program_of(found.tables)
    others = [p for finding in found.findings for p in also_possible(finding, found.step_ns, program)]
    known = {p.id: p for p in (*reversed(others), *shared, *found.prescribed)}
    findings = {f.rule: f for f in found.findings}
    return tuple(Asked(_known(name, known), findings.get(known[name].rule)) for name in ids)


def _known(name: str, known: Mapping[str, Prescription]) -> Prescription:
    if name not in known:
        raise UsageError(f"This trace has no prescription {name}; there are: {listed(known)}.")
    why = _why_unpredicted(known[name])
    if why:
        predicted = listed(each for each, p in known.items() if not _why_unpredicted(p))
        raise UsageError(f"{name} {why}, so there is nothing to predict; predicted are: {predicted}.")
    return known[name]


def _why_unpredicted(p: Prescription) -> str:
    """Return why what a prescription saves is not predicted, "" where it is."""
    if CHANGES[p.id].records:
        return "changes the recording, not the step"
    if p.predicted_step_ns is None and p.mean_step_ns is None:
        return "saves what this recording does not show"
    return ""


def are_rare(asked: Sequence[Asked]) -> bool:
    """Return whether all that is asked about shortens steps that are long now and then, which no replay holds."""
    return bool(asked) and all(a.prescription.mean_step_ns is not None for a in asked)


def listed(names: Iterable[str]) -> str:
    """Return names as a refusal lists them."""
    return ", ".join(sorted(names)) or "none"


def without_syncs_at(t: Tables, file: str, line: int) -> Transform | None:
    """Return the change that drops the waits for the device made at a line, None where none was recorded there."""
    calls = replay_base(t).t.in_window(blocking_calls(t))
    events = t.trace.events
    found = locate(t, events.thread[calls], events.start[calls])
    mine = np.array([w.line == line and bool(w.file) and _same(str(w.file), file) for w in found], bool)
    hit: npt.NDArray[np.intp] = calls[mine]
    return partial(drop_waits, calls=hit) if len(hit) else None


def _same(recorded: str, asked: str) -> bool:
    """Return whether a path ends with what was asked for, part by part."""
    parts = asked.replace("\\", "/").removeprefix("./").split("/")
    return recorded.replace("\\", "/").split("/")[-len(parts) :] == parts

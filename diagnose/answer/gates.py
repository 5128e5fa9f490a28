"""What a recording cannot carry: why to record again, and what limits the numbers of the first screen."""

from __future__ import annotations

import statistics

from diagnose.answer.cards import late_rank
from diagnose.model.diagnosis import Diagnosis, IgnoredFinding, PlainSteps
from diagnose.model.rules import LATE_RANKS
from diagnose.model.words import Count, Words
from diagnose.text.numbers import duration, percent
from diagnose.text.plain_text import one_line

__all__ = [
    "MAX_ESTIMATE",
    "MAX_OVERHEAD",
    "MIN_OVERHEAD",
    "cautions",
    "command",
    "is_one_rank",
    "limit",
    "record_again",
    "states_savings",
]

MIN_CPU_WAIT = 0.2  # of the watched time: at a half, 6 of 9 scripts with known wastes were answered otherwise
MIN_OVERHEAD = 0.2  # of the step: recording that costs more is stated next to the answer
MAX_OVERHEAD = 1.0  # recording that takes over half of the recorded step: no possible step is shown
MAX_ESTIMATE = 0.5  # of the recorded step, where no steps without the profiler show it
MIN_OFF_TRIAL = 0.5  # of a trial's step without the change, which nothing records; scripts on busy machines lie at 0.3


def record_again(d: Diagnosis) -> Words | None:
    """Return why the recording cannot carry an answer, None if it can."""
    if d.record_again:
        return Words(d.record_again)
    if d.prescriptions and d.prescriptions[0].records_again:
        first = d.findings[0] if d.findings else None
        if first is not None and first.rule == d.prescriptions[0].rule and not d.prescriptions[0].records_more:
            return Words(first.title.partition(":")[0])
        return Words("Too little of the device's work is in this recording")
    return None


def is_one_rank(d: Diagnosis) -> bool:
    """Return whether this is one rank of several, and the traces of the others are not at hand."""
    return d.source.world_size > 1 and len(d.ranks) < 2


def limit(d: Diagnosis) -> Words | None:
    """Return what keeps the recording from showing what a change gives to the step, None if nothing does.

    The answer is led by it, and no possible step is shown.
    """
    if is_one_rank(d):
        return Words("On this rank (1 of {num})", {"num": d.source.world_size})
    if d.source.accelerator:
        return Words("No {device} tasks recorded", {"device": d.source.accelerator})
    if (d.profiler_overhead or 0.0) >= MAX_OVERHEAD:
        return Words("Uncertain")
    if d.recording_estimate >= MAX_ESTIMATE and d.verdict != "kernel-bound":
        return Words("Uncertain")
    return None


def states_savings(d: Diagnosis) -> bool:
    """Return whether the recording shows what a change saves, and not only at most how much."""
    return limit(d) is None and (d.recording_estimate < MIN_OVERHEAD or d.verdict == "kernel-bound")


def command(d: Diagnosis) -> str:
    """Return the command that records again."""
    again = f"diagnose trace --quick {d.source.command or 'train.py'}"
    if d.prescriptions and d.prescriptions[0].records_again and d.prescriptions[0].after:
        again = one_line(d.prescriptions[0].after.splitlines()[0].partition("#")[0].strip())
    of_all = d.source.world_size > 1 and again.startswith("diagnose ")
    return f"torchrun --nproc-per-node gpu -m {again}" if of_all else again


def cautions(d: Diagnosis, *, again: bool) -> list[Words]:
    """Return what limits the numbers of the first screen, one sentence each; ``again``: the recording carries none."""
    found = [_left_out(d.ignored)] if d.ignored else []
    if not again:
        found += _of_recording(d)
    found += _unstable(d.plain_steps)
    if not again:
        found += _off_trial(d)
    if d.cpu_wait >= MIN_CPU_WAIT:
        words = (
            "CPU overloaded: the training thread was ready but not running {share} of the time. Measure again on an "
            "idle machine, or with fewer threads, before changing code."
        )
        found.append(Words(words, {"share": percent(d.cpu_wait, 0)}))
    if is_one_rank(d):
        words = (
            "Only 1 of {num} ranks: the others may limit the step, so no predicted step is shown. "
            "Pass the traces of all ranks."
        )
        if again:
            words = "Only 1 of {num} ranks: record all of them."
        found.append(Words(words, {"num": d.source.world_size}))
    return [*found, *([] if again else _of_answer(d))]


def _of_recording(d: Diagnosis) -> list[Words]:
    """State what recording cost, if it was much: the numbers are without it as far as it is known."""
    is_stable = d.plain_steps is None or d.plain_steps.agree  # else the difference may be the machine's
    if d.profiler_overhead is not None and d.profiler_overhead >= (MIN_OVERHEAD if is_stable else MAX_OVERHEAD):
        words = "Step time without the profiler: {step}. The {added} that recording added are taken out everywhere."
        if d.profiler_overhead >= MAX_OVERHEAD:
            words = "Recording added {added} to a step of {step}. Savings are uncertain, so no predicted step is shown."
        added = max(d.recorded_step_ns - d.step_ns, 0.0)
        return [Words(words, {"step": duration(d.step_ns), "added": duration(added)})]
    if d.recording_estimate >= MIN_OVERHEAD and d.verdict != "kernel-bound":
        words = "Up to {share} of the step is the profiler's own CPU time: savings are upper bounds."
        if d.recording_estimate >= MAX_ESTIMATE:
            words = (
                "Up to {share} of the step is the profiler's own CPU time, so no predicted step is shown. "
                "diagnose trace also times steps without the profiler."
            )
        if d.source.found_steps_by == "none":
            words = "Up to {share} of the CPU's time is the profiler's own: savings are upper bounds."
        return [Words(words, {"share": percent(d.recording_estimate, 0)})]
    return []


def _unstable(p: PlainSteps | None) -> list[Words]:
    """State that steps without the profiler differ before and after the recorded ones."""
    if p is None or p.agree:
        return []
    words = (
        "Unstable timing: {before} before, {during} during, {after} after the recording. Run again on an idle machine."
    )
    if p.before_ns is None:
        words = "Unstable timing: {during} during, {after} after the recording. Run again on an idle machine."
    elif p.after_ns is None:
        words = "Unstable timing: {before} before, {during} during the recording. Run again on an idle machine."
    each = {"before": p.before_ns, "during": p.recorded_ns, "after": p.after_ns}
    return [Words(words, {name: duration(ns) for name, ns in each.items()})]


def _off_trial(d: Diagnosis) -> list[Words]:
    """State that trials without a change take clearly more or less than the reported step, where they do."""
    runs = [t.steps_ms[0] for t in d.trials if t.steps_ms is not None and t.kind != "without"]
    if not runs or d.step_ns <= 0:
        return []
    trial_ns = 1e6 * statistics.median(runs)
    if max(trial_ns, d.step_ns) <= (1 + MIN_OFF_TRIAL) * min(trial_ns, d.step_ns):
        return []
    words = (
        "Trials without a change took {trial} per step, the recorded steps {step}. Measured speed-ups are relative to "
        "the trials; predicted times refer to the recorded steps."
    )
    return [Words(words, {"trial": duration(trial_ns), "step": duration(d.step_ns)})]


def _of_answer(d: Diagnosis) -> list[Words]:
    found, j = [], d.job
    if j is not None and d.dominant == LATE_RANKS and j.begins_late is not None and not j.late_ranks:
        words = "The cause of rank {num}'s late start is outside the {steps}. Record more steps on all ranks."
        steps = Words("recorded step") if len(j.steps) == 1 else Count(len(j.steps), "recorded step")
        found.append(Words(words, {"num": late_rank(d), "steps": steps}))
    first = next((f for f in d.findings if f.rule == d.dominant), None)
    if first is not None and first.confidence == "low":
        found.append(Words("Low confidence: the recording shows the time, but its cause is a guess."))
    return found


def _left_out(ignored: tuple[IgnoredFinding, ...]) -> Words:
    """State how many findings were left out, which, and why."""
    listed = [_ignored(one) for one in ignored]
    words = "Left out as asked: {findings}: {listed}."
    values = {f"one{i}": one for i, one in enumerate(listed)}
    joined = Words(", ".join(f"{{{name}}}" for name in values), values)
    return Words(words, {"findings": Count(len(ignored), "finding"), "listed": joined})


def _ignored(one: IgnoredFinding) -> Words:
    finding, by = one.finding, Words("by an option or setting")
    if one.by == "comment":
        place = finding.where[0]
        line = f"{one_line((place.file or '').rpartition('/')[2])}:{place.line}"
        by = Words("by the comment at {line}", {"line": line})
    words = "{rule} ({time} per step, {by})"
    return Words(words, {"rule": finding.rule, "time": duration(finding.lost_ns), "by": by})

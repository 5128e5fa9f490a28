"""What is stated of a step that is not as long as steps without the profiler are, in this run or in trials."""

from __future__ import annotations

import statistics

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.plain_steps import PlainSteps
from diagnose.reports.format import duration, plural, recording_cost
from diagnose.reports.language import tr

__all__ = ["MIN_OVERHEAD", "beside_recording", "is_off_mean", "recording_words"]

MIN_OVERHEAD = 0.2  # of the unrecorded step: recording that costs more is stated beside the answer
MIN_OFF_MEAN = 0.2  # of the run's mean step: recorded steps that differ by more hold another share of long ones
MIN_OFF_STATED_MEAN = 0.1  # of it, where a change of the same screen states what it saves of the run's mean step
MIN_OFF_TRIAL = 0.5  # of a trial's step without the change, which nothing records; scripts on busy machines lie at 0.3


def beside_recording(d: Diagnosis, why: str) -> list[str]:
    """State how the step differs from steps and trials without the profiler; ``why`` it cannot be relied on, or ""."""
    return [*_beside_steps(d), *([] if why else _off_trial(d))]


def _beside_steps(d: Diagnosis) -> list[str]:
    """State how the recorded steps differ from those without the profiler, where recording does not explain it."""
    p = d.plain_steps
    if p is None:
        return []
    if not p.agree:
        words = (
            "Steps without the profiler took {before} right before the recorded ones, which took {recorded}: the "
            "script or the machine changed meanwhile, so the reported step may not be the usual one. Record again."
        )
        if p.before_ns is None:
            words = (
                "Steps without the profiler took {after} right after the recorded ones, which took {recorded}: the "
                "script or the machine changed meanwhile, so the reported step may not be the usual one. Record again."
            )
        elif p.after_ns is not None:
            words = (
                "Steps without the profiler took {before} right before and {after} right after the recorded ones, "
                "which took {recorded}: the script or the machine changed meanwhile, so the reported step may not be "
                "the usual one. Record again."
            )
        each = (p.before_ns, p.after_ns, p.recorded_ns)
        before, after, recorded = map(duration, each)
        return [tr(words, before=before, after=after, recorded=recorded), *_off_mean(d, p)]
    return [*_unknown_cost(d, p), *_off_mean(d, p)]


def _unknown_cost(d: Diagnosis, p: PlainSteps) -> list[str]:
    """State that recorded steps are longer than others, where steps vary too much to take that out."""
    plain_ns = p.before_ns if p.before_ns is not None else p.after_ns
    if d.profiler_overhead is not None or d.recording_removed > 0 or not plain_ns:
        return []
    factor = p.recorded_ns / plain_ns
    if factor < 1 + MIN_OVERHEAD:
        return []
    words = (
        "Recorded steps take {recorded}, unrecorded ones {plain} at the median, and both vary: the times below are too "
        "long by up to {factor} ×."
    )
    return [tr(words, recorded=duration(p.recorded_ns), plain=duration(plain_ns), factor=f"{factor:.1f}")]


def _off_trial(d: Diagnosis) -> list[str]:
    """State that trials without a change take clearly more or less than the reported step, where they do."""
    runs = [t.steps_ms[0] for t in d.trials if t.steps_ms is not None and t.kind != "without"]
    if not runs or d.step_ns <= 0:
        return []
    trial_ns = 1e6 * statistics.median(runs)
    if max(trial_ns, d.step_ns) <= (1 + MIN_OFF_TRIAL) * min(trial_ns, d.step_ns):
        return []
    words = (
        "Trials without a change took {trial} a step, the recorded steps {step}: the machine or the recording made "
        "the difference. What was measured counts; predicted times are of the recorded steps."
    )
    return [tr(words, trial=duration(trial_ns), step=duration(d.step_ns))]


def _off_mean(d: Diagnosis, p: PlainSteps) -> list[str]:
    """State that the recorded steps hold more or less of the long ones than the run does, where they do."""
    if p.mean_ns is None or not is_off_mean(d):
        return []
    words = "The step of {step} is the mean of {steps}, the run's mean step is {mean}: {why}."
    why = tr("long steps are a smaller part of the recorded ones")
    if d.step_ns > p.mean_ns:
        why = tr("long steps are a larger part of the recorded ones")
    steps = plural(d.steps, "recorded step")
    return [tr(words, step=duration(d.step_ns), steps=steps, mean=duration(p.mean_ns), why=why)]


def is_off_mean(d: Diagnosis) -> bool:
    """Return whether the stated step is no mean step of the run, for another reason than that it was recorded."""
    p, left = d.plain_steps, 1 + max(d.profiler_overhead or 0.0, 0.0)
    least = MIN_OFF_MEAN if all(each.mean_step_ns is None for each in d.prescriptions) else MIN_OFF_STATED_MEAN
    return p is not None and p.mean_ns is not None and abs(d.step_ns / left - p.mean_ns) > least * p.mean_ns


def recording_words(d: Diagnosis) -> str:
    """Return by how much recorded steps were longer; "" where a caution states that they differ for other reasons."""
    words = recording_cost(d.profiler_overhead, d.recording_removed)
    return "" if d.recording_removed <= 0 and (d.profiler_overhead or 0.0) <= 0 and is_off_mean(d) else words

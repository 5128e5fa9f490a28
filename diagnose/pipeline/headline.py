"""The answer in a sentence and in three lines: every clause is made from the number that it states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

from diagnose.analyzers import META, WORK
from diagnose.model.diagnosis import Finding, Partition, Prescription, Queue, Verdict, Where
from diagnose.model.frozen import NamedTuple
from diagnose.pipeline.verdict import is_shallow
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent
from diagnose.text.titles import LARGEST_AVOIDABLE, lower_first

__all__ = ["HeadlineInputs", "headline", "summary"]

MAX_LINE = 100  # columns of a terminal that the report is laid out for
MIN_TITLE = 20  # of them, for a change's title
MAX_FILE = 26  # characters of a file's name in a line of the summary
_BY_RELIEF, _ONE_BY_RELIEF = "the largest saving", "among the largest savings"
_SHORT = {
    LARGEST_AVOIDABLE: "Largest avoidable cost",
    "the largest hidden cost": "Largest hidden cost",
    "the largest cost": "Largest cost",
    _BY_RELIEF: "Largest saving",
    _ONE_BY_RELIEF: "Among the largest savings",
    "the largest cause of idle time": "Largest idle cause",
    "the main cause": "Main cause",
}


class HeadlineInputs(NamedTuple):
    """What the sentences are made of."""

    verdict: Verdict
    queue: Queue | None
    step_ns: float
    partition: Partition | None = None
    idle_by_cause: Mapping[str, float] = {}
    findings: Sequence[Finding] = ()
    prescriptions: Sequence[Prescription] = ()
    is_incomplete: bool = False  # the recording: what a step without a cause takes is not stated
    is_withheld: bool = False  # the verdict: what the device did is not in the file
    has_steps: bool = True  # found in the file; else the whole recording stands for one
    host_by_cause: Mapping[str, float] = {}  # without a device: shares of the host's time
    record_again: str = ""  # why the file cannot carry an answer


def headline(answer: HeadlineInputs, largest: Finding | None) -> str:
    """Return the verdict in one sentence; the verdict's own word stands before it in every report."""
    if answer.record_again:
        return f"Record again first: {lower_first(answer.record_again)}"
    state = _state(answer)
    if answer.is_withheld:
        return f"{state}: graphs ran whose work is not in the file, so there is no verdict."
    if largest is None:
        return f"{state}, and nothing stands out as waste."
    whole = "step" if answer.has_steps else "recording"
    rank, of = _rank(answer, largest), whole if largest.share is None else "run"
    return f"{state}; {rank}: {lower_first(largest.title)} ({percent(_share(answer, largest, rank))} of the {of})."


def summary(answer: HeadlineInputs, largest: Finding | None) -> tuple[str, ...]:
    """Return three lines at most: the queue, the largest cost and whether it can be avoided, the first change."""
    lines = [_queue_line(answer)]
    if answer.is_withheld:
        return (*lines, "The device's work is missing from this recording; record again")
    if largest is None:
        return (*lines, _nothing(answer))
    rank = _rank(answer, largest)
    cost = _cost(answer, largest, rank)
    line, at = f"{_SHORT[rank]}: {largest.rule} {cost}, {_avoidable(answer, largest)}", _place(largest.where)
    lines.append(line + at if len(line + at) <= MAX_LINE else line)
    if answer.prescriptions:
        first = answer.prescriptions[0]
        gain = _gain(answer, first)
        room = MAX_LINE - len("First change: ") - len(gain)
        lines.append(f"First change: {shorten(first.title, max(room, MIN_TITLE), placeholder=' …')}{gain}")
    return tuple(lines)


def _nothing(answer: HeadlineInputs) -> str:
    """Return how little was found."""
    most = max(answer.findings, key=lambda f: f.lost_ns, default=None)
    if most is None or not most.lost_ns:
        return f"No rule found a cost of {percent(THRESHOLDS.naming_share)} of the step or more"
    return f"Nothing stands out as waste; the largest finding: {most.rule} {_cost(answer, most, '')}"


def _cost(answer: HeadlineInputs, finding: Finding, rank: str = "") -> str:
    of_run = "" if finding.share is None else " of the run"
    cost_ns = finding.relief_ns if rank in (_BY_RELIEF, _ONE_BY_RELIEF) and finding.relief_ns else finding.lost_ns
    return f"{duration(cost_ns)} ({percent(_share(answer, finding, rank))}{of_run})"


def _share(answer: HeadlineInputs, finding: Finding, rank: str) -> float:
    """Return the share that makes the finding what it is called: of what it costs, or of what the step is shorter."""
    if rank in (_BY_RELIEF, _ONE_BY_RELIEF) and finding.relief_ns:
        return finding.relief_ns / answer.step_ns
    return finding.share_of(answer.step_ns)


def _state(answer: HeadlineInputs) -> str:
    queue, whole = answer.queue, _whole(answer)
    if answer.is_withheld:
        return f"Incomplete recording: {_length(answer)}"
    if queue is None:
        return f"CPU-only recording: {_length(answer)}"
    idle = f"The GPU is idle {percent(queue.idle_share)} of {whole}"
    if answer.verdict == "kernel-bound":
        return f"The GPU is busy {percent(queue.busy_share)} of {whole}"
    if answer.verdict == "cpu-bound":
        return f"{idle} because the host does not keep its queue filled"
    if is_shallow(queue) or queue.busy_depth_p50 is None:
        return idle
    return f"{idle}, in gaps of a queue otherwise {queue.busy_depth_p50:,.0f} launches deep"


def _length(answer: HeadlineInputs) -> str:
    return f"{duration(answer.step_ns)} {'per step' if answer.has_steps else 'in all'}"


def _whole(answer: HeadlineInputs) -> str:
    """Return what the shares are of."""
    return f"each {duration(answer.step_ns)} step" if answer.has_steps else f"the {duration(answer.step_ns)} recording"


def _queue_line(answer: HeadlineInputs) -> str:
    queue = answer.queue
    if answer.is_withheld:
        return f"Incomplete recording: {_length(answer)}; what the device did is not known"
    if queue is None:
        return f"CPU-only recording: {_length(answer)}"
    use = f"busy {percent(queue.busy_share)}"
    if answer.verdict != "kernel-bound":
        use = f"idle {percent(queue.idle_share)}"
    depth = queue.busy_depth_p50
    deep = "depth unknown" if depth is None else f"{depth:,.0f} deep while it works"
    return f"GPU {use} of {_whole(answer)}; queue {deep}, empty {percent(queue.empty_share)}"


def _rank(answer: HeadlineInputs, largest: Finding) -> str:
    """Return what the finding is the largest of, as the numbers have it."""
    rivals = [f for f in answer.findings if f.rule != largest.rule]
    share = largest.share_of(answer.step_ns)
    if all(f.share_of(answer.step_ns) <= share for f in rivals):
        if _is_hidden(answer, largest):
            return "the largest hidden cost"
        return LARGEST_AVOIDABLE if _has_more_necessary_work(answer, largest) else "the largest cost"
    if largest.relief_ns is not None and all((f.relief_ns or 0.0) <= largest.relief_ns for f in rivals):
        return _BY_RELIEF
    if largest.relief_ns is not None and share < THRESHOLDS.naming_share:
        return _ONE_BY_RELIEF
    idle = answer.idle_by_cause.get(largest.rule, 0.0)
    if idle and idle == max(answer.idle_by_cause.values()):
        return "the largest cause of idle time"
    return LARGEST_AVOIDABLE if _saves_first(answer, largest) else "the main cause"


def _saves_first(answer: HeadlineInputs, largest: Finding) -> bool:
    """Return whether the change that comes first is one for the finding, in a step without a device."""
    first = next(iter(answer.prescriptions), None)
    return answer.queue is None and first is not None and first.rule == largest.rule and _predicts(first)


def _is_hidden(answer: HeadlineInputs, finding: Finding) -> bool:
    """Return whether a step without the cause is hardly shorter."""
    rule = META[finding.rule]
    is_short = finding.relief_ns is not None and finding.relief_ns < THRESHOLDS.naming_share * answer.step_ns
    return is_short and rule.explains and rule.kind != "trust"


def _has_more_necessary_work(answer: HeadlineInputs, largest: Finding) -> bool:
    """Return whether the step computes longer, without what the findings call waste, than the finding costs."""
    if largest.share is not None or META[largest.rule].kind == "trust" or not META[largest.rule].explains:
        return False
    if answer.partition is None:
        return answer.host_by_cause.get(WORK, 0.0) * answer.step_ns > largest.lost_ns
    wasted = sum(f.lost_ns for f in answer.findings if META[f.rule].kind == "kernel" and META[f.rule].computes)
    return answer.partition.compute * answer.step_ns - wasted > largest.lost_ns


def _avoidable(answer: HeadlineInputs, largest: Finding) -> str:
    """Return whether the cost can be avoided: what a replay without it shows, else whether a change is known."""
    rule = META[largest.rule]
    if rule.kind == "trust":
        return "of this recording, not of the program"
    if not rule.explains:
        return "of unknown cause"
    if answer.is_incomplete:
        return "in an incomplete recording"
    if _is_hidden(answer, largest):
        return "other work takes as long"
    if largest.relief_ns is not None:
        return f"without it {duration(answer.step_ns - largest.relief_ns)}"
    return _known_change(answer, largest)


def _known_change(answer: HeadlineInputs, largest: Finding) -> str:
    """Return whether one of the changes helps."""
    saved = [p.saves_ns[1] for p in answer.prescriptions if p.rule == largest.rule and _predicts(p)]
    if not saved:
        return "no change is known"
    is_worth_it = max(saved) >= THRESHOLDS.naming_share * answer.step_ns
    return "avoidable" if is_worth_it else "no change helps on its own"


def _predicts(prescription: Prescription) -> bool:
    return prescription.predicted_step_ns is not None or prescription.mean_step_ns is not None


def _gain(answer: HeadlineInputs, first: Prescription) -> str:
    """Return what the first change saves, "" where nothing is predicted."""
    least, most = first.saves_ns
    if not _predicts(first) or most < THRESHOLDS.naming_share * answer.step_ns:
        return ""
    if least < THRESHOLDS.naming_share * answer.step_ns:
        return f" (saves up to {duration(most)})"
    low, high = duration(least), duration(most)
    whole = f" of the run's mean step of {duration(first.mean_step_ns)}" if first.mean_step_ns is not None else ""
    return f" (saves {high}{whole})" if low == high else f" (saves {low} to {high}{whole})"


def _place(places: Sequence[Where]) -> str:
    first = next((w for w in places if w.file), None)
    if first is None:
        return ""
    file = (first.file or "").rpartition("/")[2]
    file = file if len(file) <= MAX_FILE else "…" + file[1 - MAX_FILE :]
    return f", {file}:{first.line}" if first.line is not None and first.line > 0 else f", {file}"

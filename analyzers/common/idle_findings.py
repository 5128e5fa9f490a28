"""Turns the idle time of one cause into a finding: how often, how much, the largest examples, and where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import enclosing_operators, locate_one, ranked_places, sampled_lines, source_line
from diagnose.model.arrays import Floats, Ints, Mask
from diagnose.model.diagnosis import Confidence, Example, Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, grouped, intersect, span, total, union
from diagnose.model.limits import AT_ONCE_NS
from diagnose.model.rules import Cause
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_work
from diagnose.tables.names import BACKWARD
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent, plural

_RUNS_BACKWARD = r"\.backward\(|autograd\.grad\("
_EACH = r"(?<! of) (?:a|per) step\b"


def of_whole(t: Tables) -> str:
    """Return the words that follow a time of the mean step."""
    return "of the step" if t.steps.marked else "of the recording"


def of_recording(evidence: tuple[str, ...]) -> tuple[str, ...]:
    """Return evidence of a recording without steps: what it counts is of the whole."""
    return tuple(re.sub(_EACH, " in all", text) for text in evidence)


def in_steps(t: Tables, start: Ints, lost: Ints) -> str:
    """Return in how many of the steps something is, as words of a title; "in the recording" if it has no steps."""
    return in_those(int(_by_step(t, start, lost)[1].sum()), t.steps.num) if t.steps.marked else "in the recording"


def in_those(num: int, num_all: int) -> str:
    """Return the words of a title for ``num`` of so many steps."""
    if num_all == 1:
        return "in the recorded step"
    return f"in each of {num_all} steps" if num == num_all else f"in {num} of {num_all} steps"


def _by_step(t: Tables, start: Ints, lost: Ints) -> tuple[Floats, Mask]:
    """Return what each step loses, ns, and which steps lose half of what the mean step does or more.

    Given are where the losses begin, in time order, and how much each is.
    """
    step = np.searchsorted(t.steps.start, start, side="right") - 1
    found = np.bincount(np.maximum(step, 0), lost.astype(np.float64), minlength=t.steps.num).astype(np.float64)
    return found, (found > 0) & (2 * found >= found.mean())


def worth_claiming(t: Tables, left: Intervals, found: Intervals, min_share: float = 0.05) -> Intervals:
    """Return what of ``found`` is left to claim, nothing where all of it is a smaller share of the steps."""
    start, end = t.steps.window
    return intersect(left, found) if total(found) >= min_share * (end - start) else EMPTY


class IdleGaps(NamedTuple):
    """The idle pieces of one rule summed per gap; columns are parallel, in time order."""

    gap: npt.NDArray[np.intp]  # row of Gaps
    lost: Ints  # ns
    start: Ints  # of the first piece in the gap
    end: Ints  # of the last piece in the gap
    pieces: Intervals


def idle_gaps_of(t: Tables, rule: str) -> IdleGaps:
    """Collect the idle pieces of a rule; one row is one gap, and without a device one piece."""
    rows = t.causes.of(rule)
    start, end = t.causes.start[rows], t.causes.end[rows]
    if t.device_id < 0:
        return IdleGaps(t.causes.gap[rows], end - start, start, end, Intervals(start, end))
    gap, first, inverse = grouped(t.causes.gap[rows])
    lost = np.bincount(inverse, (end - start).astype(np.float64), minlength=len(gap)).astype(np.int64)
    last = np.append(first[1:], len(rows)) - 1
    return IdleGaps(gap, lost, start[first], end[last] if len(gap) else end[:0], union((start, end)))


@dataclass(frozen=True)
class Probe:
    """Where to look for the reason of an idle gap: a thread and a time for each, and intervals for the sampler."""

    thread: npt.NDArray[np.int16]
    time: Ints
    during: Intervals


def _probe(t: Tables, o: IdleGaps, which: str) -> Probe:
    """Return where to look: at the launch that ended the gap, at its start, or at the main thread in its middle.

    At the start is the call that returned late; the sampler sees the wait that led to the gap, in the millisecond
    before. Where nothing was launched, the middle stands for the launch.
    """
    middle = Probe(np.full(len(o.gap), t.main, np.int16), (o.start + o.end) // 2, o.pieces)
    if which == "middle":
        return middle
    launch, events, start = t.gaps.launch[o.gap], t.trace.events, t.gaps.start[o.gap]
    thread = np.where(launch >= 0, events.thread[launch], t.main).astype(np.int16)
    if which == "start":
        seen = union((np.maximum(start - 1_000_000, 0), start + AT_ONCE_NS))
        return Probe(thread, np.maximum(start - 1, 0), seen)
    # Where the next task was queued already, the line that runs during the gap is another than the one that queued it.
    late = o.gap[(launch < 0) | (t.gaps.launch_start[o.gap] > start)]
    during = intersect(o.pieces, union((t.gaps.start[late], t.gaps.end[late])))
    return Probe(thread, np.where(launch >= 0, events.start[launch], middle.time), during)


@dataclass(frozen=True)
class IdleRule:
    """How an idle rule describes itself: what `idle_finding` cannot derive."""

    rule: str
    title: str
    probe: Literal["launch", "middle", "start"] = "launch"
    confidence: Confidence = "high"
    evidence: Sequence[str] = ()
    facts: Facts = field(default_factory=dict)
    cause: Cause | None = None  # of host work that is looked for under a busy device too, where no idle time shows it
    doubt: str = ""


def idle_finding(t: Tables, idle: IdleRule) -> list[Finding]:
    """Return the finding of an idle rule, or nothing where the rule claimed no time and no work under the device."""
    o = idle_gaps_of(t, idle.rule)
    if not len(o.gap):
        return _hidden_finding(t, idle)
    probe = _probe(t, o, idle.probe)
    total_ns = int(o.lost.sum())
    lost, some = total_ns / t.steps.num, "s" * (len(o.gap) != 1)
    what = f"idle gap{some}" if t.device_id >= 0 else f"interval{some} of the {thread_of(t)}"
    evidence = [
        f"{len(o.gap)} {what} in {_extent(t, o, lost)} ({percent(lost / t.steps.step_ns)}).",
        *idle.evidence,
    ]
    return [
        Finding(
            rule=idle.rule,
            title=idle.title,
            lost_ns=lost,
            count=len(o.gap),
            total_ns=total_ns,
            median_ns=int(np.median(o.lost)),
            evidence=tuple(evidence),
            examples=tuple(_examples(t, o, probe)),
            where=_places(t, o.lost, probe),
            confidence=idle.confidence,
            doubt=idle.doubt,
            facts=idle.facts,
        )
    ]


def thread_of(t: Tables) -> str:
    """Return what a report calls the thread that issues the steps: inference trains nothing."""
    return "thread that runs the model" if t.program.trains is False else "training thread"


def _extent(t: Tables, o: IdleGaps, lost_ns: float) -> str:
    """Return in how many steps it occurred, and what it costs of what: of each step only if each has it."""
    if not t.steps.marked:
        return f"the recording: {duration(lost_ns)} of it"
    steps = f"{t.steps.num} step{'s' * (t.steps.num != 1)}"
    by_step, those = _by_step(t, o.start, o.lost)
    if those.all():
        return f"{steps}: {duration(lost_ns)} of each step"
    each_ns = float(by_step[those].mean())
    return f"{int(those.sum())} of {steps}: {duration(each_ns)} each, {duration(lost_ns)} of the mean step"


def _hidden_finding(t: Tables, idle: IdleRule) -> list[Finding]:
    """Return the finding of host work that the device's own work covers: only a replay shows whether it costs."""
    if idle.cause is None or t.device_id < 0:
        return []
    work = intersect(intersect(host_work(t, idle.cause, EMPTY), span(*t.steps.window)), t.occupancy.busy)
    took = total(work) / t.steps.num
    if took < THRESHOLDS.naming_share * t.steps.step_ns:
        return []
    during = Probe(np.full(len(work.start), t.main, np.int16), (work.start + work.end) // 2, work)
    length = work.end - work.start
    return [
        Finding(
            rule=idle.rule,
            title=idle.title,
            lost_ns=0.0,
            count=len(length),
            median_ns=int(np.median(length)),
            evidence=(
                f"{len(length)} interval{'s' * (len(length) != 1)} in {t.steps.num} step{'s' * (t.steps.num != 1)}, "
                f"{duration(took)} {of_whole(t)} ({percent(took / t.steps.step_ns)}), while the device was still busy.",
            ),
            where=_places(t, length, during),
            confidence=idle.confidence,
            doubt=idle.doubt,
            facts=idle.facts,
        )
    ]


def _places(t: Tables, cost_ns: Ints, probe: Probe) -> tuple[Where, ...]:
    """Return the places of the gaps, the most expensive first; lines of the sampler stand before all others."""
    largest = np.argsort(-cost_ns, kind="stable")[:200]  # of the largest gaps: they stand for the rest
    ranked = [where for where, _ in ranked_places(t, probe.thread[largest], probe.time[largest], cost_ns[largest])]
    lines = [where for where, share in sampled_lines(t, probe.during) if share >= 0.2]
    named = {(where.file, where.line) for where in lines}
    ranked = [w for w in ranked if (w.file or w.op or w.library) and (w.file, w.line) not in named]
    places = [*lines, *ranked]
    if t.device_id < 0 and any(w.file and w.op and BACKWARD.match(w.op) for w in ranked):
        # Last the lines that call the backward pass, which repeats what others called.
        places.sort(
            key=lambda w: re.search(_RUNS_BACKWARD, source_line(t, w.file or "", w.line or 0) or "") is not None
        )
    return tuple(places[:5])


def _examples(t: Tables, o: IdleGaps, probe: Probe) -> list[Example]:
    found = []
    for i in np.argsort(-o.lost, kind="stable")[:3].tolist():
        gap = int(o.gap[i])
        thread, time = int(probe.thread[i]), int(probe.time[i])
        step = max(int(np.searchsorted(t.steps.start, o.start[i], side="right")) - 1, 0)
        found.append(
            Example(
                step=int(t.steps.number[step]),
                start_ns=int(o.start[i] - t.steps.start[step]),
                lost_ns=int(o.lost[i]),
                before=_task(t, int(t.gaps.before[gap])),
                after=_task(t, int(t.gaps.after[gap])),
                host=enclosing_operators(t, thread, probe.time[i : i + 1])[0],
                where=locate_one(t, thread, time),
            )
        )
    return found


def _task(t: Tables, row: int) -> str:
    return t.name(int(t.tasks.row[row])) if row >= 0 else ""


def calls_inside(t: Tables, rule: str) -> list[str]:
    """Name the runtime calls that took the idle time of a rule, the longest first."""
    rows = t.host_rows(Kind.RUNTIME)
    events = t.trace.events
    inside = covered(t.causes.pieces(rule), events.start[rows], events.end[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    names, _, inverse = grouped(events.name[rows])
    sums = np.bincount(inverse, inside.astype(np.float64), minlength=len(names))
    counts = np.bincount(inverse, minlength=len(names))
    top = np.argsort(-sums)[:3]
    return [
        f"{t.trace.names[int(names[i])]}: {plural(counts[i], 'call')}, {duration(sums[i])} of the idle time."
        for i in top
    ]

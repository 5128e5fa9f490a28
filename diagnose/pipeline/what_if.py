"""Answers "what would the step take if": the steady steps replayed with one change after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diagnose.analyzers import META, OUTSIDE, WORK, data_stall
from diagnose.analyzers.common.loading import loading_facts
from diagnose.changes.common.buckets import MAX_UNEXPLAINED, with_buckets
from diagnose.changes.common.loading import (
    computing_share,
    handover_ns,
    hidden_by_first_workers,
    hidden_by_more_workers,
    recorded_cores,
    shares_cores,
    useful_workers,
)
from diagnose.changes.common.prescribe import also_possible
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.kept import checkpoints, step_memory
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Facts, Finding, Forecast, Prescription
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, total
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.model.numerics import number
from diagnose.model.records import MAX_INT
from diagnose.model.rules import LATE_RANKS
from diagnose.pipeline.code_times import host_operators
from diagnose.pipeline.find import find_in_rank, tables_without_recording
from diagnose.pipeline.run import analyze_captures, compare_captures, scaled_together, shown_rank
from diagnose.pipeline.savings import after_prescription, effect_in, with_rare
from diagnose.pipeline.timeline import operator_times
from diagnose.pipeline.true_step import true_step
from diagnose.pipeline.trust import why_unusable
from diagnose.ranks.comparison import Comparison, excess_of
from diagnose.ranks.profile import PHASES
from diagnose.ranks.replay import Schedule, in_buckets, overlapped, replayed, schedule_of, without_excess
from diagnose.ranks.usable import listed
from diagnose.replay.build import MAX_ERROR_TO_RELY, replay_base
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Graph, Transform
from diagnose.replay.predict import Predicted, path_shares, predict, unchanged
from diagnose.replay.transforms import remove_cause, scale_host, scale_kernels, shorten_tasks
from diagnose.tables import Tables
from diagnose.tables.flow import shows_values
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import duration, growth, lower_first, percent, plural, size_words
from diagnose.text.plain_text import one_line
from diagnose.trace_reader import open_captures

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AskedOfJob:
    """What is asked about all ranks, in the order in which it is made."""

    without_late: bool = False
    bucket_mb: float | None = None
    overlap: tuple[str, ...] = ()  # names of collectives, of OVERLAPPED

    def __bool__(self) -> bool:
        """Return whether anything is asked."""
        return self != AskedOfJob()


@dataclass(frozen=True, slots=True)
class WhatIfRequest:
    """The changes, in the order in which they are made."""

    apply: tuple[str, ...] = ()  # ids of prescriptions
    without: tuple[str, ...] = ()  # rules whose cause is taken away whole
    workers: int | None = None  # of the DataLoader
    bucket_mb: float | None = None  # of DistributedDataParallel
    overlap: tuple[str, ...] = ()  # collectives of all ranks, as `all_gather`
    scale: tuple[tuple[str, float], ...] = ()  # kernels, by a pattern of their names, and the share of their time
    memory: int | None = None  # bytes that the step may hold at its peak

    def of_job(self, num_ranks: int) -> tuple[AskedOfJob, WhatIfRequest]:
        """Return what is asked about all ranks, which is made after what changes one of them, and the rest.

        Raises:
            UsageError: it needs several ranks, and there is one.
        """
        if num_ranks == 1:
            if self.overlap:
                raise UsageError(
                    "Overlapped exchanges are replayed on all ranks at once, and this is the recording of one: give "
                    "the folder of all ranks."
                )
            return AskedOfJob(), self
        others = tuple(rule for rule in self.without if rule != LATE_RANKS)
        asked = AskedOfJob(others != self.without, self.bucket_mb, self.overlap)
        return asked, replace(self, without=others, bucket_mb=None, overlap=())


def parse_scale(text: str) -> tuple[str, float]:
    """Read PATTERN=FACTOR, or kernel~PATTERN=FACTOR.

    Raises:
        UsageError: it is not of that form, or the factor is negative or beyond any machine.
    """
    pattern, _, factor = text.removeprefix("kernel~").rpartition("=")
    with suppress(ValueError, re.error):
        re.compile(pattern)
        if pattern and 0 <= float(factor) <= 1000:  # no other device is slower by more
            return pattern, float(factor)
    raise UsageError(f"{text} is not of the form PATTERN=FACTOR with a factor from 0 to 1000, such as 'gemm=0.5'.")


def parse_size(text: str) -> int:
    """Read a number of bytes with its unit, such as 20GB (10^9 bytes) or 20GiB (2^30).

    Raises:
        UsageError: it is not of that form.
    """
    if (found := _SIZE.fullmatch(text.strip())) is not None:
        size = float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
        if 1 <= size <= MAX_INT:
            return int(size)
    raise UsageError(f"{text} is not a number with a unit of memory, such as 500MB, 20GB or 20GiB.")


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """The result of the replay; times in ns."""

    forecasts: tuple[Forecast, ...]  # the first is the step as measured
    error: float | None  # share by which the unchanged replay misses the step; None where nothing was replayed
    path: tuple[tuple[str, float], ...]  # category and its share of the critical path then, the largest first
    assumptions: tuple[str, ...] = ()  # what ranges rest on, one sentence each
    memory: WithinMemory | None = None  # where a peak was asked for

    @property
    def baseline_ns(self) -> float:
        """Return the step as measured."""
        return self.forecasts[0].step_ns

    @property
    def after_ns(self) -> float:
        """Return the step after all changes."""
        return self.forecasts[-1].step_ns

    @property
    def is_doubtful(self) -> bool:
        """Return whether the replay misses the measured step by too much to rely on it."""
        return self.error is not None and abs(self.error) > MAX_ERROR_TO_RELY

    def text(self) -> str:
        """Return the answer for a terminal."""
        memory = self.memory.lines() if self.memory is not None else ()
        return "\n".join([*self._lines(), *memory, *self._rests_on()])

    def _rests_on(self) -> Iterator[str]:
        yield from self.assumptions
        if self.error is None:
            yield "Not replayed: what is saved lies in steps that were not recorded, and their cost bounds it."
            return
        path = ", ".join(f"{one_line(name)} {percent(share, 0)}" for name, share in self.path)
        yield f"its critical path: {path}"
        off = (
            f"Replayed with usual delays, the unchanged step comes out {percent(abs(self.error))} off the measured one"
        )
        doubt = ": too much to rely on this; the trace does not show what its tasks waited for."
        yield f"{off}{doubt if self.is_doubtful else '.'}"

    def to_json(self) -> str:
        """Return the answer as JSON; times are ms."""
        return json.dumps(
            {
                "forecasts": [
                    {"title": f.title, "step_ms": _ms(f.step_ns), "range_ms": [_ms(f.low_ns), _ms(f.high_ns)]}
                    for f in self.forecasts
                ],
                "replay": {"error_share": self.error},
                "assumes": list(self.assumptions),
                "critical_path": dict(self.path),
                "memory": self.memory.to_json() if self.memory is not None else None,
            },
            indent=2,
        )

    def _lines(self) -> Iterator[str]:
        yield f"step {self.forecasts[0].title}   {self.baseline_ns / 1e6:.2f} ms"
        for i, f in enumerate(self.forecasts[1:]):
            span = f"  ({_ms(f.low_ns):.2f} to {_ms(f.high_ns):.2f} ms)" if f.high_ns > f.low_ns * 1.001 else ""
            yield f"  {'and' if i else 'with'} {one_line(f.title)}: {f.step_ns / 1e6:.2f} ms{span}"
        gain = 1 - self.after_ns / self.baseline_ns if self.baseline_ns else 0.0
        change = f"{percent(gain, 0)} shorter" if gain >= 0 else f"{growth(-gain, 0)} longer"
        yield f"step then  {self.after_ns / 1e6:.2f} ms ({change})"


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)


def run_what_if(path: str | Path, request: WhatIfRequest) -> WhatIfResult:
    """Replay the steady steps with the changes, one after the other; of several ranks that which the report shows.

    Raises:
        InputError: the trace cannot be read.
        UsageError: a name is unknown, or what it names takes no time here or cannot be replayed.
    """
    captures = scaled_together(open_captures([path]))
    capture = captures[shown_rank(captures)]
    t = tables_without_recording(capture)  # what the report's savings rest on
    asked = _asked_prescriptions(t, captures, capture, request.apply)
    rare_ns = true_step(t).rare_ns
    now = "now" if len(captures) == 1 else f"now, rank {capture.trace.rank} of {len(captures)}"
    state = with_rare(unchanged(t), rare_ns)
    forecasts = [Forecast((), now, state.step_ns, state.low_ns, state.high_ns)]
    assumptions = [f"Record again first: {lower_first(why)}" for why in [why_unusable(t)] if why]
    of_job, of_rank = request.of_job(len(captures))
    for step in _steps(t, asked, of_rank, state.step_ns):
        state = step.after(state)
        assumptions += step.assumptions
        forecasts.append(Forecast((), step.title, state.step_ns, state.low_ns, state.high_ns))
    memory = None
    if request.memory is not None:
        memory, state = _within_memory(t, state, request.memory)
        if memory.calls:
            forecasts.append(Forecast((), memory.title, state.step_ns, state.low_ns, state.high_ns))
    if of_job:
        without = of_rank.without if request.workers is None else (*of_rank.without, data_stall.META.id)
        forecasts += _of_all_ranks(captures, of_job, tuple(forecasts), without, request.apply)
    is_rare = all(a.prescription.mean_step_ns is not None for a in asked)  # long now and then, which no replay holds
    if asked and is_rare and request == WhatIfRequest(apply=request.apply):
        return WhatIfResult(tuple(forecasts), None, ())
    path_then = sorted(((k, v) for k, v in path_shares(t, state).items() if v > 0), key=lambda item: -item[1])
    return WhatIfResult(tuple(forecasts), replay_base(t).error, tuple(path_then), tuple(assumptions), memory)


class _Step(NamedTuple):
    """One change: what it is called, and the prediction after it from the one before it."""

    title: str
    after: Callable[[Predicted], Predicted]
    assumptions: tuple[str, ...] = ()  # what a range rests on, one sentence each


def _steps(t: Tables, asked: Sequence[_Asked], request: WhatIfRequest, step_ns: float) -> Iterator[_Step]:
    def whole(title: str, change: Transform) -> _Step:
        return _Step(title, partial(predict, t, effect=Effect(change, change)))

    for p, finding in asked:  # as the report's card has it
        effect = effect_in(t, finding, p)
        title = p.id if effect is not None else f"{p.id} (bounded by what its cause takes: no replay shows it)"
        yield _Step(title, partial(after_prescription, t, prescription=p, effect=effect, step_ns=step_ns))
    for rule in request.without:
        yield whole(f"no {rule}", _without(t, rule))
    if request.workers is not None:
        effect, rests_on = _with_workers(t, request.workers)
        yield _Step(plural(request.workers, "loader worker"), partial(predict, t, effect=effect), rests_on)
    if request.bucket_mb is not None:
        change = with_buckets(t, request.bucket_mb)
        if change is None:
            raise _refused(
                "Buckets of another size cannot be replayed: the trace holds no reductions with recorded sizes, or "
                "they take far longer than their bytes explain, waiting for other ranks, whose recordings would show "
                "since when: give the folder of all. What takes time here can be taken away with --without",
                _replayable_causes(t),
            )
        yield whole(f"gradient buckets of {request.bucket_mb:g} MB", change)
    for pattern, factor in request.scale:
        what = "kernels" if t.device_id >= 0 else "operators"
        yield whole(f"{what} ~ {pattern} in {factor:g} of their time", _scaled(t, pattern, factor))


def _refused(why: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"{why}: {', '.join(sorted(names)) or 'none'}.")


# What is taken away or scaled.


def _without(t: Tables, rule: str) -> Transform:
    known, replayable = {name for name, _ in t.claims}, _replayable_causes(t)
    if rule not in known:
        start = _refused(f"Invalid --without {rule}: use a rule of idle time", known)
        raise _refused(f"{start} In this trace these take time", replayable)
    if rule in (WORK, OUTSIDE):
        raise _refused(
            "Operators are the work of the step itself and cannot be taken away; --scale 'addmm=0.5' changes the time "
            "of those that a pattern finds. Without them there are",
            replayable,
        )
    if not len(t.causes.of(rule)):
        raise _refused(f"{rule} takes no time in this trace, so it cannot be taken away; there are", replayable)
    change = _removed(t, rule)
    if change is None:
        raise _refused(
            f"The replay cannot remove {rule}: its cause is not work or waiting of the host. It can remove",
            replayable,
        )
    return change


def _removed(t: Tables, rule: str) -> Transform | None:
    return remove_cause(t, Finding(rule, "", 0.0), META[rule].cause, 1.0) if rule in META else None


def _replayable_causes(t: Tables) -> list[str]:
    """Return the rules that take time in this trace and that a replay can take away."""
    return [name for name, _ in t.claims if len(t.causes.of(name)) and _removed(t, name) is not None]


def _scaled(t: Tables, pattern: str, factor: float) -> Transform:
    """Return the change of the kernels whose name a pattern finds; without a device of operators and what they call."""
    part = replay_base(t).t
    if t.device_id >= 0:
        if not any(re.search(pattern, t.name(int(row))) for row in part.tasks.row):
            raise UsageError(f"No kernel in the replayed steps has a name that '{pattern}' finds.")
        return partial(scale_kernels, trace=t.trace, pattern=pattern, factor=factor)
    rows = part.in_window(part.calls(re.compile(pattern), Kind.OP))
    if not len(rows):
        costliest = ", ".join(operator.name for operator in host_operators(part)[:5]) or "none"
        raise UsageError(
            f"No operator in the replayed steps has a name that '{pattern}' finds; the costliest are: {costliest}."
        )
    return partial(scale_host, intervals=part.covering(rows), factor=factor)


# Prescriptions, as the report's cards have them.


class _Asked(NamedTuple):
    """A prescription and what it is for, None where that was found in several ranks together."""

    prescription: Prescription
    finding: Finding | None


def _asked_prescriptions(
    t: Tables, captures: Sequence[Capture], capture: Capture, ids: Sequence[str]
) -> tuple[_Asked, ...]:
    if not ids:
        return ()
    found = find_in_rank(capture, t.analyses)
    shared = analyze_captures(captures, draw=False).prescriptions if len(captures) > 1 else ()  # those of all ranks too
    program = found.tables.program
    others = [p for finding in found.findings for p in also_possible(finding, found.step_ns, program)]
    known = {p.id: p for p in (*reversed(others), *shared, *found.prescribed)}
    findings = {f.rule: f for f in found.findings}
    why_not = {
        name: "changes the recording, not the step" if p.records_again else "saves what this recording does not show"
        for name, p in known.items()
        if p.records_again or (p.predicted_step_ns is None and p.mean_step_ns is None)
    }
    for name in ids:
        if name not in known:
            raise _refused(f"This trace has no prescription {name}; there are", known)
        if name in why_not:
            predicted = [each for each in known if each not in why_not]
            raise _refused(f"{name} {why_not[name]}, so there is nothing to predict; predicted are", predicted)
    return tuple(_Asked(known[name], findings.get(known[name].rule)) for name in ids)


# What the step takes with so many loader workers: by what the report's prescriptions are predicted with.


def _with_workers(t: Tables, num: int) -> tuple[Effect, tuple[str, ...]]:
    """Return what ``num`` worker processes make of the steps, and what both ends of that rest on, one sentence each.

    A batch costs what the training thread was seen to load for where it loads by itself. Where workers load it costs
    as many waits as there are workers: they deliver one batch each in the time of a step that waits for them. With
    more hands a batch arrives every cost / num; the step waits for what that exceeds the rest of it. Workers that
    compute leave the training process its core.
    """
    loading = t.covering(t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)))
    stall_ns = total(loading) / t.steps.num
    if stall_ns <= 0:
        raise _refused(
            "The steady steps do not wait for a DataLoader, so workers change nothing. What they wait for can be "
            "taken away with --without",
            _replayable_causes(t),
        )
    whole: Transform = partial(scale_host, intervals=loading, factor=0.0)
    rest_ns = predict(t, unchanged(t), Effect(whole, whole)).step_ns
    facts = loading_facts(t)
    has = facts.get("num_workers")
    if isinstance(has, int) and has > 0 and not facts["single_process"]:
        least, most, rests_on = _more(facts, t.steps.step_ns, rest_ns, has, num)
    else:
        least, most, rests_on = _first(facts, stall_ns, rest_ns, num)
    slow, quick = (partial(scale_host, intervals=loading, factor=1 - share) for share in (min(least, most), most))
    return Effect(slow, quick), rests_on


def _first(facts: Facts, stall_ns: float, rest_ns: float, num: int) -> tuple[float, float, tuple[str, ...]]:
    """Return which share of the stall workers hide that load instead of the training process: least and most, and why.

    It is what the prescription of them rests on.
    """
    if facts.get("restart_share"):
        raise UsageError(
            "The loader restarts for each batch, so workers would be started for each batch too; make its iterator "
            "once and record again."
        )
    cores, computing, handed = recorded_cores(facts), computing_share(facts), duration(handover_ns(facts))
    cpus = cores or num + 1  # not recorded: enough for what is asked about
    running = min(num, max(useful_workers(facts) - 1, 1))
    hidden = hidden_by_first_workers(facts, stall_ns, rest_ns, running, cpus)
    has_handover = bool(handover_ns(facts))
    if hidden is None:
        room = f", of {plural(cores, 'core')} the training keeps one" if cores and computing == 1 else ""
        taking = f", and taking it from a worker costs up to {handed}" if has_handover else ""
        raise UsageError(
            f"With {plural(num, 'loader worker')} the step would hardly be shorter: loading a batch takes "
            f"{duration(number(facts, 'batch_ns'))}{room}{taking}. Make a sample cheaper instead."
        )
    busy = number(facts, "ready_share")
    said = {  # who computes where
        f"The training keeps one of {cpus} cores, which leaves {running} for {num} workers: they load no faster "
        f"than {running} would, and may delay the training until nothing is gained.": running < num,
        f"Assumes that loading needs a core for {percent(computing, 0)} of its time.": computing < 1,
        "At least nothing is gained: workers take cores from the threads of the training's operators, and each "
        "operator waits for the last of its threads.": shares_cores(facts, running, cpus),
        "Assumes at most a free core for each worker, besides the training's, and at least none: the training waited "
        f"for a core for {percent(busy, 0)} of the recording.": computing * busy > MAX_READY_SHARE,
        "Assumes a free core for each worker, besides the training's.": True,
    }
    rests_on = [next(words for words, holds in said.items() if holds)]
    if has_handover:
        rests_on.append(f"Taking a batch from a worker costs up to {handed}.")
    return 0.0 if running < num else hidden[0], hidden[1], tuple(rests_on)


def _more(facts: Facts, step_ns: float, rest_ns: float, has: int, num: int) -> tuple[float, float, tuple[str, ...]]:
    """Return the same of workers that load beside those there are, as the prescription of more has it."""
    useful = max(min(num, useful_workers(facts)), min(num, has))
    words = f"Assumes at most that each of {num} workers loads as fast as the {has} that there are."
    if useful < num:
        words = f"Of {num} workers no more than {useful} find a core, so the others are not counted."
    return (*hidden_by_more_workers(facts, step_ns, rest_ns, has, useful), (words,))


# What to compute again in the backward pass so that a step fits into so much memory, and what that takes.


class ComputedAgain(NamedTuple):
    """One module or line whose calls are computed again, after those before it in the list."""

    line: Frame | None
    caller: Frame | None  # that calls the function of a line
    module: str  # its qualified name, "" for a line
    freed_bytes: int
    added_ns: float  # to the step
    peak_bytes: int
    step_ns: float

    @property
    def name(self) -> str:
        """Return the module and its line: "blocks.4 at train.py:29", or a line and what calls it."""
        line, caller = (f"{at.file.rpartition('/')[2]}:{at.line}" if at is not None else "" for at in self[:2])
        return " at ".join(part for part in (self.module, line) if part) + (f", called at {caller}" if caller else "")


class WithinMemory(NamedTuple):
    """A list of what to compute again, and what it starts from."""

    most_bytes: int
    peak_bytes: int  # as recorded
    basis: str  # of that peak: "memory records" or "data flow"
    calls: tuple[ComputedAgain, ...]

    @property
    def title(self) -> str:
        """Return what the change is called."""
        return f"{plural(len(self.calls), 'checkpoint')} for a peak of {size_words(self.calls[-1].peak_bytes)}"

    def lines(self) -> Iterator[str]:
        """Yield the list as text."""
        fits = "" if self.calls else f", which is within {size_words(self.most_bytes)}"
        yield f"peak memory now {size_words(self.peak_bytes)}, by the {self.basis}{fits}"
        for each in self.calls:
            yield (
                f"  {each.name}: frees {size_words(each.freed_bytes)}, adds {duration(each.added_ns)} per step; then "
                f"peak {size_words(each.peak_bytes)}, step {duration(each.step_ns)}"
            )

    def to_json(self) -> dict[str, object]:
        """Return the list as JSON; times are ms."""
        return {
            "budget_bytes": self.most_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_from": self.basis,
            "checkpoints": [
                {
                    "file": each.line and each.line.file,
                    "line": each.line and each.line.line,
                    "module": each.module,
                    "frees_bytes": each.freed_bytes,
                    "adds_ms": each.added_ns / 1e6,
                    "peak_bytes": each.peak_bytes,
                    "step_ms": each.step_ns / 1e6,
                }
                for each in self.calls
            ],
        }


def _within_memory(t: Tables, before: Predicted, most_bytes: int) -> tuple[WithinMemory, Predicted]:
    """Return what to compute again so that the step's peak is at most so many bytes, and the step then.

    The peak is the larger one of the memory records and of what the data flow holds: the former lack what was there
    before the recording of a host, the latter what operators take for themselves.

    Raises:
        UsageError: there is no data flow of the steps, or so little memory cannot be reached.
    """
    flow = t.flow
    if flow is None or t.capture.dataflow is None:
        raise UsageError(
            "--memory needs the data flow of a step, which this recording does not have: record it with diagnose "
            "trace, without --no-dataflow and without --quick."
        )
    if not shows_values(t):
        raise UsageError(
            "The data flow of this recording differs from its timed steps, so what computing again takes is not known. "
            "Record again."
        )
    memory = step_memory(graph_of(t.capture.dataflow))
    held, records = int(memory.held.max(initial=0)), t.memory
    is_same = (t.device_id < 0) == memory.device.startswith("cpu")
    peak, basis = held, "data flow"
    if records is not None and is_same and records.peak_allocated > held:
        peak, basis = records.peak_allocated, "memory records"
    other, (host, device) = peak - held, operator_times(t, flow)
    # Each takes the host's time in the forward pass or the device's, whichever is longer.
    times = [max(host[[*one.operators]].sum(), device[[*one.operators]].sum()) for one in memory.kept]
    found = checkpoints(memory.held, memory.kept, times, most_bytes - other)
    lowest = other + found[-1].peak_bytes if found else peak
    if lowest > most_bytes:
        raise UsageError(
            f"A peak of {size_words(most_bytes)} cannot be reached by computing again in the backward pass: it falls "
            f"from {size_words(peak)} to {size_words(lowest)}, which is {size_words(lowest - most_bytes)} too much."
        )
    calls, state = [], before
    for each in found:
        one, earlier = memory.kept[each.number], state
        again = partial(twice, t=t, pieces=flow.span_of(t, one.operators))
        state = predict(t, state, Effect(again, again))
        added_ns = state.step_ns - earlier.step_ns
        calls.append(
            ComputedAgain(
                one.line, one.caller, one.module, each.freed_bytes, added_ns, other + each.peak_bytes, state.step_ns
            )
        )
    return WithinMemory(most_bytes, peak, basis, tuple(calls)), state


def twice(graph: Graph, t: Tables, pieces: Intervals) -> Graph:
    """Make the host's work in the pieces, and the tasks that it launches, take twice as long."""
    tasks = np.flatnonzero(t.launched_in(pieces))
    tasks = tasks[np.argsort(t.tasks.row[tasks], kind="stable")]
    if len(tasks):
        length = (t.tasks.end - t.tasks.start)[tasks].astype(np.float64)
        graph = shorten_tasks(graph, t.tasks.row[tasks], -length)
    return scale_host(graph, pieces, 2.0)


# What is asked about all ranks of a job: they are replayed through their collectives, after the changes of one rank.


def _of_all_ranks(
    captures: Sequence[Capture],
    asked: AskedOfJob,
    forecasts: Sequence[Forecast],
    without: Collection[str],
    applied: Collection[str],
) -> Iterator[Forecast]:
    """Yield the step after each change, by a replay of all ranks.

    ``forecasts`` are the step as it is and after each change made before: the causes of rules taken away, prescriptions
    applied.

    Raises:
        UsageError: nothing of what is asked about was recorded, or the replay misses the measured steps by too much.
    """
    comparison, _ = compare_captures(captures)
    schedule = schedule_of(comparison.ranks, comparison.matches, comparison.times)
    if schedule is None and not asked.without_late:
        raise UsageError(
            "The recording holds no two steps in which the ranks share collectives, so that their exchanges cannot be "
            "replayed: give the traces of all ranks of a job, of the same steps."
        )
    # No step is shorter than what the ranks compute that are not late.
    rows = [i for i, cause in enumerate(comparison.times.causes) if cause in PHASES]
    others = [i for i in range(len(comparison.ranks)) if i not in comparison.lateness.late]
    computing = comparison.times.spent[others][:, rows].sum(axis=1)
    computing = computing[~np.isnan(computing).all(axis=1)]
    before, least = forecasts[-1], float(np.nanmedian(computing, axis=1).max()) if computing.size else 0.0
    if asked.without_late:
        saved = _saved_without_late(comparison, forecasts, without, applied)
        ranks = listed([comparison.ranks[i].rank for i in comparison.lateness.late])
        before = _shortened(before, saved, least, f"{ranks} as the others of its role")
        yield before
    if schedule is None:
        return
    _check(replayed(schedule, schedule).error)
    if asked.without_late:
        schedule = without_excess(schedule, excess_of(comparison.ranks, comparison.lateness))
    num = plural(len(comparison.ranks), "rank")
    if asked.bucket_mb is not None:
        baseline, schedule = _in_buckets(schedule, asked.bucket_mb * 2**20)
        title = f"gradient buckets of {asked.bucket_mb:g} MB on {num}"
        before = _shortened(before, _saved(baseline, schedule), least, title)
        yield before
    for name in asked.overlap:
        after = _overlapped(schedule, name)
        before = _shortened(before, _saved(schedule, after), least, f"{name} overlapped on {num}")
        schedule = after
        yield before


def _overlapped(schedule: Schedule, name: str) -> Schedule:
    """Return the steps with collectives of this name overlapped with computation."""
    after = overlapped(schedule, name)
    if after is None:
        all_of_them = [c for step in schedule.steps for c in step.collectives]
        raise _refused(
            f"No rank waits for {'an' if name.startswith('a') else 'a'} {name} that could overlap with computation, so "
            "nothing is gained by overlapping it. Waited for",
            {c.kind.name for c in all_of_them if any(part.blocks is not None for part in c.parts)},
        )
    return after


def _check(error: float, refused: str = "nothing is predicted of what the ranks exchange") -> None:
    """Refuse to answer where the unchanged replay misses the measured steps."""
    if abs(error) > MAX_ERROR_TO_RELY:
        raise UsageError(
            f"The replay of all ranks misses the measured steps by {percent(error, 0)}, too much to rely on: {refused}."
        )


def _saved_without_late(
    comparison: Comparison, forecasts: Sequence[Forecast], without: Collection[str], applied: Collection[str]
) -> float:
    """Return what is saved if the late ranks are as their equals are, ns.

    What a late rank has more of by causes that are gone is not taken away once more.
    """
    found = comparison.without_late
    if found is None:
        raise UsageError(
            f"No rank is late in this recording, so {LATE_RANKS} cannot be taken away; diagnose analyze "
            "shows what the ranks wait for."
        )
    _check(found.error, f"{LATE_RANKS} cannot be taken away")
    gone = {*without, *(rule for rule, meta in META.items() if {*applied} & {*meta.changes, *meta.also})}
    twice = sum(max(ns, 0.0) for cause, ns in comparison.reason.differences.items() if cause in gone)
    return max(found.saved_ns - min(twice, max(forecasts[0].step_ns - forecasts[-1].step_ns, 0.0)), 0.0)


def _in_buckets(schedule: Schedule, num_bytes: float) -> tuple[Schedule, Schedule]:
    """Return the steps with the recorded buckets and with those of another size."""
    found = in_buckets(schedule, num_bytes)
    if found is None:
        raise UsageError(
            "Buckets of another size cannot be replayed: the steps hold no buckets of DistributedDataParallel with "
            "recorded sizes, or no backward that fills them."
        )
    modelled = replayed(schedule, found[0])
    off = modelled.after_ns / max(modelled.unchanged_ns, 1.0) - 1
    if abs(off) > MAX_UNEXPLAINED:
        raise UsageError(
            "Buckets of another size cannot be replayed: what the recorded ones take does not follow from their sizes "
            f"at one rate; from the sizes, the step would be {percent(abs(off), 0)} off."
        )
    return found


def _saved(baseline: Schedule, after: Schedule) -> float:
    """Return what a change of the schedule saves, ns; less than 0 where it makes steps longer."""
    pair = replayed(baseline, after)
    return pair.unchanged_ns - pair.after_ns


def _shortened(before: Forecast, saved_ns: float, least_ns: float, title: str) -> Forecast:
    """Return the step after one more change; none is shorter than what ranks compute that are not late."""
    step_ns, low_ns, high_ns = (
        max(ns - saved_ns, min(ns, least_ns)) for ns in (before.step_ns, before.low_ns, before.high_ns)
    )
    return Forecast((), title, step_ns, low_ns, high_ns)

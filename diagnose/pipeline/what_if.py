"""Answers "what would the step take if": the steady steps replayed with one change after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers import META, OUTSIDE, WORK, data_stall, host_sync
from diagnose.analyzers.common.loading import loading_facts
from diagnose.analyzers.common.locate import locate
from diagnose.changes import CHANGES
from diagnose.changes.common.buckets import with_buckets
from diagnose.changes.common.loading import (
    handover_ns,
    hidden_by_first_workers,
    hidden_by_more_workers,
    number,
    recorded_cores,
    shares_cores,
    useful_workers,
)
from diagnose.changes.common.prescribe import also_possible
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Facts, Finding, Prescription
from diagnose.model.events import Kind
from diagnose.model.forecast import Forecast
from diagnose.model.intervals import total
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.pipeline.find import build_tables, find_in_rank, tables_without_recording
from diagnose.pipeline.rank import host_operators
from diagnose.pipeline.run import analyze_captures, scaled_together, shown_rank
from diagnose.pipeline.savings import after_prescription, effect_in, with_rare
from diagnose.pipeline.true_step import true_step
from diagnose.pipeline.trust import why_unusable
from diagnose.pipeline.what_if_memory import WithinMemory, within_memory
from diagnose.pipeline.what_if_ranks import of_all_ranks
from diagnose.pipeline.what_if_request import WhatIfRequest, parse_place, parse_scale, parse_size
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Transform
from diagnose.replay.predict import MAX_ERROR_TO_RELY, Predicted, path_shares, predict, replay_base, unchanged
from diagnose.replay.transforms import drop_waits, remove_cause, scale_host, scale_kernels
from diagnose.tables import Tables
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import duration, growth, percent, plural
from diagnose.text.plain_text import one_line
from diagnose.text.titles import lower_first
from diagnose.trace_reader import open_captures

__all__ = [
    "Asked",
    "WhatIfRequest",
    "WhatIfResult",
    "WithWorkers",
    "are_rare",
    "asked_prescriptions",
    "listed",
    "parse_place",
    "parse_scale",
    "parse_size",
    "run_what_if",
    "with_workers",
    "without_syncs_at",
]

# What the step takes with so many loader workers: by what the report's prescriptions are predicted with.


class WithWorkers(NamedTuple):
    """What workers make of the steps, and what both ends of that rest on, one sentence each."""

    effect: Effect
    assumptions: tuple[str, ...]


class _Hidden(NamedTuple):
    """Which share of the stall is gone at least and at most."""

    least: float
    most: float
    assumptions: tuple[str, ...]


def with_workers(t: Tables, num: int) -> WithWorkers | None:
    """Return what ``num`` worker processes make of the steps, None where the step does not wait for its loader.

    A batch costs what the training thread was seen to load for where it loads by itself. Where workers load it costs
    as many waits as there are workers: they deliver one batch each in the time of a step that waits for them. With
    more hands a batch arrives every cost / num; the step waits for what that exceeds the rest of it. Workers that
    compute leave the training process its core.

    Raises:
        UsageError: workers would hardly make the step shorter.
    """
    loading = t.covering(t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)))
    stall_ns = total(loading) / t.steps.num
    if stall_ns <= 0:
        return None
    whole: Transform = partial(scale_host, intervals=loading, factor=0.0)
    rest_ns = predict(t, unchanged(t), Effect(whole, whole)).step_ns
    facts = loading_facts(t)
    has = facts.get("num_workers")
    if isinstance(has, int) and has > 0 and not facts["single_process"]:
        hidden = _more(facts, t.steps.step_ns, rest_ns, has, num)
    else:
        hidden = _first(facts, stall_ns, rest_ns, num)
    least, most = (
        partial(scale_host, intervals=loading, factor=1 - share)
        for share in (min(hidden.least, hidden.most), hidden.most)
    )
    return WithWorkers(Effect(least, most), hidden.assumptions)


def _first(facts: Facts, stall_ns: float, rest_ns: float, num: int) -> _Hidden:
    """Return what workers hide that load instead of the training process, as the prescription of them does."""
    if facts.get("restart_share"):
        raise UsageError(
            "The loader restarts for each batch, so workers would be started for each batch too; make its iterator "
            "once and record again."
        )
    cores, waits = recorded_cores(facts), bool(facts.get("waits"))
    cpus = cores or num + 1  # not recorded: enough for what is asked about
    running = num if waits else min(num, max(cpus - 1, 1))
    hidden = hidden_by_first_workers(facts, stall_ns, rest_ns, running, cpus)
    if hidden is None:
        room = f", of {plural(cores, 'core')} the training keeps one" if cores and not waits else ""
        taking = f", and taking it from a worker costs up to {_handed(facts)}" if handover_ns(facts) else ""
        raise UsageError(
            f"With {plural(num, 'loader worker')} the step would hardly be shorter: loading a batch takes "
            f"{duration(number(facts, 'batch_ns'))}{room}{taking}. Make a sample cheaper instead."
        )
    taking = f"Taking a batch from a worker costs up to {_handed(facts)}."
    rests_on = (_of_cores(facts, running, num, cpus), *([taking] if handover_ns(facts) else []))
    return _Hidden(0.0 if running < num else hidden[0], hidden[1], rests_on)


def _handed(facts: Facts) -> str:
    return duration(handover_ns(facts))


def _of_cores(facts: Facts, running: int, num: int, cpus: int) -> str:
    """Return what the range rests on: who computes where."""
    if running < num:
        return (
            f"The training keeps one of {cpus} cores, which leaves {running} for {num} workers: they load no faster "
            f"than {running} would, and may hold the training up until nothing is gained."
        )
    if facts.get("waits"):
        return "Assumes that loading waits and needs no core of its own."
    if shares_cores(facts, running, cpus):
        return (
            "At least nothing is gained: workers take cores from the threads of the training's operators, and each "
            "operator waits for the last of its threads."
        )
    if (busy := number(facts, "ready_share")) > MAX_READY_SHARE:
        return (
            "Assumes at most a free core for each worker beside the training's, and at least none: the training waited "
            f"for a core for {percent(busy, 0)} of the recording."
        )
    return "Assumes a free core for each worker beside the training's."


def _more(facts: Facts, step_ns: float, rest_ns: float, has: int, num: int) -> _Hidden:
    """Return what workers hide that load beside those there are, as the prescription of more does."""
    useful = max(min(num, useful_workers(facts)), min(num, has))
    least, most = hidden_by_more_workers(facts, step_ns, rest_ns, has, useful)
    if useful < num:
        words = f"Of {num} workers no more than {useful} find a core, so the others are not counted."
    else:
        words = f"Assumes at most that each of {num} workers loads as fast as the {has} that there are."
    return _Hidden(least, most, (words,))


# What a question names: prescriptions, with refusals that name what is predicted instead, and waits of a line.


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
    program = found.tables.program
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
    calls = replay_base(t).t.in_window(t.blocking_calls)
    events = t.trace.events
    found = locate(t, events.thread[calls], events.start[calls])
    mine = np.array([w.line == line and bool(w.file) and _same(str(w.file), file) for w in found], bool)
    hit: npt.NDArray[np.intp] = calls[mine]
    return partial(drop_waits, calls=hit) if len(hit) else None


def _same(recorded: str, asked: str) -> bool:
    """Return whether a path ends with what was asked for, part by part."""
    parts = asked.replace("\\", "/").removeprefix("./").split("/")
    return recorded.replace("\\", "/").split("/")[-len(parts) :] == parts


MAX_NAMED = 5  # operators, in a refusal


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


class _Step(NamedTuple):
    """One change: what it is called, and the prediction after it from the one before it."""

    title: str
    after: Callable[[Predicted], Predicted]
    assumptions: tuple[str, ...] = ()


def run_what_if(path: str | Path, request: WhatIfRequest) -> WhatIfResult:
    """Replay the steady steps with the changes, one after the other; of several ranks that which the report shows.

    Raises:
        InputError: the trace cannot be read.
        UsageError: a name is unknown, or what it names takes no time here or cannot be replayed.
    """
    captures = scaled_together(open_captures([path]))
    capture = captures[shown_rank(captures)]
    t = _tables(capture, request)
    asked = asked_prescriptions(t, captures, capture, request.apply)
    is_rare = are_rare(asked) and request == WhatIfRequest(apply=request.apply)
    state, now = _baseline(t), _now(capture, len(captures))
    forecasts, assumptions = [Forecast((), now, state.step_ns, state.low_ns, state.high_ns)], list[str]()
    if why := why_unusable(t):
        assumptions.append(f"Record again first: {lower_first(why)}")
    of_job, request = request.of_job(len(captures))
    for step in _steps(t, capture, asked, request, state.step_ns):
        state = step.after(state)
        assumptions += step.assumptions
        forecasts.append(Forecast((), step.title, state.step_ns, state.low_ns, state.high_ns))
    memory = None
    if request.memory is not None:
        memory, state = within_memory(t, state, request.memory)
        if memory.calls:
            forecasts.append(Forecast((), memory.title, state.step_ns, state.low_ns, state.high_ns))
    if of_job:
        gone = (
            *request.without,
            *([data_stall.META.id] if request.workers else []),
            *([host_sync.META.id] if request.no_sync else []),
        )
        forecasts += of_all_ranks(captures, of_job, tuple(forecasts), gone, request.apply)
    if is_rare:
        return WhatIfResult(tuple(forecasts), None, ())
    path_then = sorted(((k, v) for k, v in path_shares(t, state).items() if v > 0), key=lambda item: -item[1])
    return WhatIfResult(tuple(forecasts), replay_base(t).error, tuple(path_then), tuple(assumptions), memory)


def _tables(capture: Capture, request: WhatIfRequest) -> Tables:
    """Return the tables that the report's savings rest on, or of the trace with lines where a line was asked about."""
    if request.no_sync and capture.attribution is not None:
        return build_tables(capture, capture.attribution)
    return tables_without_recording(capture)


def _baseline(t: Tables) -> Predicted:
    """Return the step without the profiler: the replayed one, and what steps take that are long now and then."""
    return with_rare(unchanged(t), true_step(t).rare_ns if t.trace is t.capture.trace else 0.0)


def _now(capture: Capture, num_ranks: int) -> str:
    return "now" if num_ranks == 1 else f"now, rank {capture.trace.rank} of {num_ranks}"


def _steps(
    t: Tables, capture: Capture, asked: Sequence[Asked], request: WhatIfRequest, step_ns: float
) -> Iterator[_Step]:
    yield from _applied(t, asked, step_ns)
    for rule in request.without:
        yield _whole(t, f"no {rule}", _without(t, rule))
    for file, line in request.no_sync:
        yield _whole(t, f"no wait for the device at {file}:{line}", _without_sync(t, capture, file, line))
    if request.workers is not None:
        yield _workers(t, request.workers)
    if request.bucket_mb is not None:
        yield _whole(t, f"gradient buckets of {request.bucket_mb:g} MB", _buckets(t, request.bucket_mb))
    for pattern, factor in request.scale:
        what = "kernels" if t.device_id >= 0 else "operators"
        yield _whole(t, f"{what} ~ {pattern} in {factor:g} of their time", _scaled(t, pattern, factor))


def _applied(t: Tables, asked: Sequence[Asked], step_ns: float) -> Iterator[_Step]:
    """Yield the change of each prescription, as the report's card has it."""
    for p, finding in asked:
        effect = effect_in(t, finding, p)
        title = p.id if effect is not None else f"{p.id} (bounded by what its cause takes: no replay shows it)"
        yield _Step(title, partial(after_prescription, t, prescription=p, effect=effect, step_ns=step_ns))


def _whole(t: Tables, title: str, change: Transform) -> _Step:
    return _Step(title, partial(predict, t, effect=Effect(change, change)))


def _without_sync(t: Tables, capture: Capture, file: str, line: int) -> Transform:
    if t.device_id < 0:
        raise UsageError(
            f"These steps use no device, so nothing at {file}:{line} waits for one. What takes the host's time can "
            f"be taken away with --without: {listed(_replayable_causes(build_tables(capture, capture.trace)))}."
        )
    change = without_syncs_at(t, file, line)
    if change is None:
        raise UsageError(f"No wait for the device was recorded at {file}:{line} in the steady steps.")
    return change


def _workers(t: Tables, num: int) -> _Step:
    change = with_workers(t, num)
    if change is None:
        raise UsageError(
            "The steady steps do not wait for a DataLoader, so workers change nothing. What they wait for can be "
            f"taken away with --without: {listed(_replayable_causes(t))}."
        )
    return _Step(plural(num, "loader worker"), partial(predict, t, effect=change.effect), change.assumptions)


def _buckets(t: Tables, size_mb: float) -> Transform:
    change = with_buckets(t, size_mb)
    if change is None:
        raise UsageError(
            "Buckets of another size cannot be replayed: the trace holds no reductions with recorded sizes, or "
            "they take far longer than their bytes explain, waiting for other ranks, whose recordings would show "
            "since when: give the folder of all. What takes time here can be "
            f"taken away with --without: {listed(_replayable_causes(t))}."
        )
    return change


def _without(t: Tables, rule: str) -> Transform:
    known = {name for name, _ in t.claims}
    if rule in (WORK, OUTSIDE) and rule in known:
        raise UsageError(
            "Operators are the work of the step itself and cannot be taken away; --scale 'addmm=0.5' changes the time "
            f"of those that a pattern finds. Without them there are: {listed(_replayable_causes(t))}."
        )
    if rule not in known:
        raise UsageError(
            f"Invalid --without {rule}: use a rule of idle time: {listed(known)}. In this trace these take time: "
            f"{listed(_replayable_causes(t))}."
        )
    if not len(t.causes.of(rule)):
        raise UsageError(
            f"{rule} takes no time in this trace, so it cannot be taken away; there are: "
            f"{listed(_replayable_causes(t))}."
        )
    change = _removed(t, rule)
    if change is None:
        raise UsageError(
            f"The replay cannot take {rule} away: its cause is not work or waiting of the host. It can take away: "
            f"{listed(_replayable_causes(t))}."
        )
    return change


def _removed(t: Tables, rule: str) -> Transform | None:
    return remove_cause(t, Finding(rule, "", 0.0), META[rule].cause, 1.0) if rule in META else None


def _replayable_causes(t: Tables) -> list[str]:
    """Return the rules that take time in this trace and that a replay can take away."""
    return [name for name, _ in t.claims if len(t.causes.of(name)) and _removed(t, name) is not None]


def _scaled(t: Tables, pattern: str, factor: float) -> Transform:
    if t.device_id < 0:
        return _scaled_operators(t, pattern, factor)
    tasks = replay_base(t).t.tasks.row
    if not any(re.search(pattern, t.name(int(row))) for row in tasks):
        raise UsageError(f"No kernel in the replayed steps has a name that '{pattern}' finds.")
    return partial(scale_kernels, trace=t.trace, pattern=pattern, factor=factor)


def _scaled_operators(t: Tables, pattern: str, factor: float) -> Transform:
    """Return the change of the operators on the host, with what they call."""
    part = replay_base(t).t
    rows = part.in_window(part.calls(re.compile(pattern), Kind.OP))
    if not len(rows):
        top = [operator.name for operator in host_operators(part)][:MAX_NAMED]
        raise UsageError(
            f"No operator in the replayed steps has a name that '{pattern}' finds; the costliest are: "
            f"{', '.join(top) or 'none'}."
        )
    return partial(scale_host, intervals=part.covering(rows), factor=factor)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)

"""Answers "what would the step take if": the steady steps replayed with one change after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from diagnose.analyzers import META, OUTSIDE, WORK, data_stall, host_sync
from diagnose.changes.common.buckets import with_buckets
from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.forecast import Forecast
from diagnose.model.frozen import NamedTuple, dataclass
from diagnose.pipeline.find import build_tables, tables_without_recording
from diagnose.pipeline.host_operators import host_operators
from diagnose.pipeline.run import scaled_together, shown_rank
from diagnose.pipeline.savings import after_prescription, effect_in, with_rare
from diagnose.pipeline.true_step import true_step
from diagnose.pipeline.trust import why_unusable
from diagnose.pipeline.what_if_asked import Asked, are_rare, asked_prescriptions, listed, without_syncs_at
from diagnose.pipeline.what_if_memory import WithinMemory, within_memory
from diagnose.pipeline.what_if_ranks import of_all_ranks
from diagnose.pipeline.what_if_request import WhatIfRequest, parse_place, parse_scale, parse_size
from diagnose.pipeline.what_if_workers import with_workers
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Transform
from diagnose.replay.predict import MAX_ERROR_TO_RELY, Predicted, path_shares, predict, replay_base, unchanged
from diagnose.replay.transforms import remove_cause, scale_host, scale_kernels
from diagnose.tables import Tables
from diagnose.text.numbers import growth, percent, plural
from diagnose.text.plain_text import one_line
from diagnose.text.titles import lower_first
from diagnose.trace_reader import open_captures

__all__ = ["WhatIfRequest", "WhatIfResult", "parse_place", "parse_scale", "parse_size", "run_what_if"]


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

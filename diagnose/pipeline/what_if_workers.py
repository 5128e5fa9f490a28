"""What the step takes with so many loader workers: by what the report's prescriptions are predicted with."""

from __future__ import annotations

from functools import partial

from diagnose.analyzers.common.loading import loading_facts
from diagnose.changes.common.loading import (
    handover_ns,
    hidden_by_first_workers,
    hidden_by_more_workers,
    number,
    recorded_cores,
    shares_cores,
    useful_workers,
)
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Facts
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import total
from diagnose.model.limits import MAX_READY_SHARE
from diagnose.replay.effects import Effect
from diagnose.replay.graph import Transform
from diagnose.replay.predict import predict, unchanged
from diagnose.replay.transforms import scale_host
from diagnose.tables import Tables
from diagnose.tables.names import LOADER_NEXT
from diagnose.text.numbers import duration, percent, plural

__all__ = ["WithWorkers", "with_workers"]


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

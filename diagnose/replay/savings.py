"""What each prescription saves, and all of them one after the other: replayed on a few steps, never added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.forecast import CriticalPath, Forecast, Waterfall
from diagnose.replay.build import build
from diagnose.replay.graph import Graph
from diagnose.replay.models import Effect, effect_of
from diagnose.replay.path import critical_path, on_path, shares
from diagnose.replay.period import owners, period_ns
from diagnose.replay.simulate import simulate
from diagnose.replay.step_subset import step_subset
from diagnose.replay.transforms import typical_delays
from diagnose.tables import Tables

__all__ = ["Replayed", "path_of", "replay_savings", "waterfall"]

RELIABLE = 0.1  # the error of the unchanged replay above which savings stay bounds
WORTH_ADDING = 0.01  # of the step: less is no step of the waterfall
MOST_REPLAYED = 8  # prescriptions, the most valuable first: each takes two replays
_BOUND_BY = {
    "host": "the host: Python and operators between launches",
    "compute": "the device's own kernels",
    "communication": "communication",
    "copy": "copies between host and device",
    "latency": "launch latency and pauses between tasks",
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Prescriptions with replayed savings, and what the replay rests on."""

    prescriptions: tuple[Prescription, ...]
    effects: Mapping[str, Effect] = field(default_factory=dict)  # by id: what was replayed
    error: float | None = None  # share by which the unchanged replay misses the step with usual delays
    path: Mapping[str, float] | None = None  # shares of the critical path by category
    on_path: Mapping[str, float] = field(default_factory=dict)  # by rule: share of the path that its cause lies on
    why_not: str = ""  # why savings stayed bounds


def replay_savings(t: Tables, found: Sequence[Finding], prescribed: Sequence[Prescription]) -> Replayed:
    """Return the prescriptions with (least, most) from replays in which the stated part of the cause is taken away."""
    prescribed = tuple(prescribed)
    if not found:
        return Replayed(prescribed)
    part, graph = _graph(t)
    base = simulate(graph)
    now = _step_ns(t, graph)
    if now <= 0:
        return Replayed(prescribed, why_not="The steps have no length to replay.")
    error = abs(simulate(typical_delays(graph)).window_ns / base.window_ns - 1)
    chain = critical_path(graph, base)
    path = shares(part, graph, chain)
    lying = {f.rule: on_path(t, graph, chain, f) for f in found}
    if error > RELIABLE:
        why = (
            f"Replayed with usual delays the step comes out {error:.0%} off: the trace does not show what its tasks "
            "waited for, so what changes save is bounded, not replayed."
        )
        return Replayed(prescribed, error=error, path=path, on_path=lying, why_not=why)
    by_rule = {f.rule: f for f in found}
    replayed, effects = list(prescribed), {}
    for i, p in enumerate(prescribed[:MOST_REPLAYED]):
        taken = _fractions(by_rule[p.rule], p) if p.rule in by_rule else (0.0, 0.0)
        effect = effect_of(t, by_rule[p.rule], p.id, taken) if taken[1] > 0 else None
        if effect is not None and effect.most is not None:
            effects[p.id] = effect
            replayed[i] = _with_savings(p, _saved(t, graph, now, effect), effect.assumes, t.steps.step_ns)
    replayed.sort(key=lambda p: -sum(p.saves_ns))
    return Replayed(tuple(replayed), effects, error, path, lying)


def waterfall(t: Tables, found: Sequence[Finding], replayed: Replayed) -> Waterfall | None:
    """Return the step after one prescription, two, …, each for another finding, replayed together; None without any."""
    if not replayed.effects:
        return None
    _, graph = _graph(t)
    now = _step_ns(t, graph)
    if now <= 0:
        return None
    scale = t.steps.step_ns / now
    chain = [Forecast((), "now", t.steps.step_ns, t.steps.step_ns, t.steps.step_ns)]
    low = high = middle = graph
    for p in _one_for_each(found, replayed):
        effect = replayed.effects[p.id]
        changes = (effect.most, effect.least, effect.middle)
        after = [change(g) if change else g for g, change in zip((low, high, middle), changes, strict=True)]
        most = effect.most_ns
        before = (chain[-1].low_ns, chain[-1].high_ns, chain[-1].step_ns)
        # Moved tasks may meet others than before; a change that lengthens the step gives nothing, it takes nothing.
        lengths = [min(max(_step_ns(t, g) * scale, b - most), b) for g, b in zip(after, before, strict=True)]
        if chain[-1].step_ns - lengths[2] < WORTH_ADDING * t.steps.step_ns:
            continue
        low, high, middle = after
        ids = (*chain[-1].ids, p.id)
        chain.append(Forecast(ids, p.title, lengths[2], min(lengths), max(lengths)))
    if len(chain) == 1:
        return None
    then = shares(t, middle, critical_path(middle, simulate(middle)))
    largest = max(then, key=lambda name: then[name], default="")
    return Waterfall(tuple(chain), _BOUND_BY.get(largest, largest), then)


def path_of(t: Tables, replayed: Replayed, *, draw: bool = True) -> CriticalPath | None:
    """Return the critical path, with its pieces where it is to be drawn; None where nothing was replayed."""
    if replayed.path is None or not draw:
        return None if replayed.path is None else CriticalPath(replayed.path)
    from diagnose.replay.path_report import drawn_path

    part, graph = _graph(t)
    i = t.steps.median_step
    end = int(t.steps.end[i]) if i + 1 < t.steps.num else t.steps.window_end
    return drawn_path(part, graph, simulate(graph), (int(t.steps.start[i]), end), replayed.path)


def _graph(t: Tables) -> tuple[Tables, Graph]:
    def make() -> tuple[Tables, Graph]:
        part = step_subset(t)
        return part, build(part)

    return t.cached("replayed steps", make)


def _step_ns(t: Tables, graph: Graph) -> float:
    part, original = _graph(t)
    owner = t.cached("owners of replayed nodes", lambda: owners(part, original))
    return period_ns(graph, simulate(graph), owner)


def _fractions(finding: Finding, p: Prescription) -> tuple[float, float]:
    """Return which part of the cause the prescription takes away at least and at most."""
    if finding.lost_ns <= 0:
        return 0.0, 0.0
    least, most = (min(max(saved / finding.lost_ns, 0.0), 1.0) for saved in p.saves_ns)
    return least, most


def _saved(t: Tables, graph: Graph, now: float, effect: Effect) -> tuple[float, float]:
    """Return how much shorter the step gets (ns) by the least and by the most of an effect."""
    saved = []
    for change in (effect.least, effect.most):
        then = _step_ns(t, change(graph)) if change is not None else now
        saved.append(min(max(1 - then / now, 0.0) * t.steps.step_ns, effect.most_ns))
    return min(saved), max(saved)


def _with_savings(p: Prescription, saved: tuple[float, float], assumes: str, step_ns: float) -> Prescription:
    return replace(p, saves_ns=saved, predicted_step_ns=step_ns - sum(saved) / 2, basis="replay", assumes=assumes)


def _one_for_each(found: Sequence[Finding], replayed: Replayed) -> list[Prescription]:
    """Return for each finding the prescription that saves most of it; what saves most comes first."""
    rules = {f.rule for f in found}
    chosen: dict[str, Prescription] = {}
    for p in replayed.prescriptions:
        if p.id in replayed.effects and p.rule in rules:
            chosen.setdefault(p.rule, p)
    return list(chosen.values())

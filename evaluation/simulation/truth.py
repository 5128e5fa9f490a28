"""What each waste costs: the same program, with the same draws, run without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from simulation.engine import run
from simulation.machine import Machine
from simulation.steps import Plan, loader_of, step_of
from simulation.timeline import PLAIN, Levers, Program, Run
from simulation.wastes import Waste
from simulation.workloads import Planted, Workload

__all__ = ["BOUNDS", "FREE_DEVICE", "FREE_HOST", "Limit", "Situation", "Truth", "truth_of"]

Limit = Literal["host", "device", "mixed"]
FREE_HOST = Levers(host_rest=0.0)
FREE_DEVICE = Levers(device_rest=0.0)
GRAPHED = Levers(host={"dispatch": 0.0, "glue": 0.0, "record": 0.0, "launch": 0.1})
# What the wastes of a family can cost at most: their costs set to nothing, planted or not.
BOUNDS: dict[str, Levers] = {
    "launches": GRAPHED,
    "waits": Levers(waits=False),
    "loader": Levers(host={"loader": 0.0}),
    "host": Levers(host=dict.fromkeys(("python", "glue", "collector", "compile", "off-cpu", "environment"), 0.0)),
    "copies": Levers(device={"copy": 0.0}),
    "communication": Levers(device={"comm": 0.0}, host={"barrier": 0.0}),
    "allocator": Levers(host={"allocator": 0.0}),
    "compile": Levers(host={"compile": 0.0}),
    "kernels": Levers(device=dict.fromkeys(
        ("matmul", "pointwise", "norm", "attention", "layout", "optimizer", "other", "cast", "pieces"), 0.0)),
    "pointwise": Levers(
        host=GRAPHED.host, device=dict.fromkeys(("pointwise", "norm", "attention", "cast", "pieces", "other"), 0.0)
    ),
    "layout": Levers(device={"layout": 0.0}),
    "attention": Levers(host=GRAPHED.host, device={"attention": 0.0}),
    "latency": Levers(device={"latency": 0.0}),
    "streams": Levers(device={"copy": 0.0, "comm": 0.0}),
}  # fmt: skip
LIMITED = 0.9  # of the step that stays when the other side costs nothing


@dataclass(frozen=True)
class Situation:
    """A machine, a workload and its wastes: all that a truth depends on."""

    machine: Machine
    make: Callable[[Planted], Workload]
    wastes: tuple[Waste, ...]
    steps: int = 6
    skipped: int = 2
    seed: int = 0

    def program(
        self, removed: frozenset[str] = frozenset(), *, fused_optimizer: bool = False, copy_ahead: bool = False
    ) -> Program:
        """Return the program without the wastes named."""
        wastes = {w.kind: replace(w, repaired=w.kind in removed) for w in self.wastes}
        there = {kind for kind, waste in wastes.items() if not waste.repaired}
        float32: Literal["", "tf32", "single"] = "" if "float32-products" not in wastes else "tf32"
        layers = Planted(
            float32="single" if "float32-products" in there else float32,
            written_attention="written-attention" in there,
            written_activation="written-activation" in there,
            transposed="layout-copies" in there,
        )
        plan = Plan(self.make(layers), self.machine, wastes, fused_optimizer, copy_ahead)
        ranks = tuple(step_of(plan, rank) for rank in range(plan.workload.ranks))
        return Program(ranks, loader_of(plan), self.steps, self.skipped, self.seed)

    def step_ns(self, removed: frozenset[str] = frozenset(), levers: Levers = PLAIN) -> float:
        """Return the step without the wastes named."""
        return self.step_of(self.program(removed), levers)

    def step_of(self, program: Program, levers: Levers = PLAIN) -> float:
        """Return the step of a program on this machine."""
        return run(program, self.machine, levers, keep=False).step_ns

    def recorded(self) -> Run:
        """Return the run that the trace is written from."""
        return run(self.program(), self.machine)


@dataclass(frozen=True)
class Truth:
    """Steps in ns: as it is, without each waste, without all, and what limits it."""

    situation: Situation
    step_ns: float
    without: Mapping[str, float]
    clean_ns: float
    free_host_ns: float
    free_device_ns: float

    def saving(self, kind: str) -> float:
        """Return what removing a waste alone saves, as a share of the step."""
        return 1 - self.without[kind] / self.step_ns

    @property
    def best(self) -> str | None:
        """Return the waste whose removal saves most, None without one."""
        return min(self.without, key=lambda kind: self.without[kind], default=None)

    @property
    def best_saving(self) -> float:
        """Return what removing the best one saves, 0 without one."""
        return self.saving(self.best) if self.best else 0.0

    @property
    def limit(self) -> Limit:
        """Return which side the step waits for: what stays as long when the other side costs nothing."""
        host = self.free_device_ns / self.step_ns >= LIMITED
        device = self.free_host_ns / self.step_ns >= LIMITED
        return "host" if host and not device else "device" if device and not host else "mixed"

    def bound(self, family: str) -> float:
        """Return what a family of costs set to nothing would save, as a share of the step."""
        if family not in self._bounds:
            self._bounds[family] = 1 - self.situation.step_ns(levers=BOUNDS[family]) / self.step_ns
        return self._bounds[family]

    @cached_property
    def graphed(self) -> float:
        """Return what launching all by graphs would save."""
        return self.bound("launches")

    @cached_property
    def fused(self) -> float:
        """Return what a fused optimizer would save."""
        kinds = frozenset({"loop-optimizer"})
        return 1 - self.situation.step_of(self.situation.program(kinds, fused_optimizer=True)) / self.step_ns

    @cached_property
    def copied_ahead(self) -> float:
        """Return what copying each batch while the step before runs would save."""
        kinds = frozenset({"pageable-copy"})
        return 1 - self.situation.step_of(self.situation.program(kinds, copy_ahead=True)) / self.step_ns

    def silence(self, kinds: frozenset[str], *, environment: float = 0.0) -> float:
        """Return what the host's code between operators takes together: these wastes, and of environments the rest."""
        return 1 - self.situation.step_ns(kinds, Levers(host={"environment": environment})) / self.step_ns

    @cached_property
    def _bounds(self) -> dict[str, float]:
        return {}


def truth_of(situation: Situation) -> Truth:
    """Run a situation without each of its wastes, without all, and on free hosts and devices."""
    kinds = [waste.kind for waste in situation.wastes]
    return Truth(
        situation,
        situation.step_ns(),
        {kind: situation.step_ns(frozenset({kind})) for kind in kinds},
        situation.step_ns(frozenset(kinds)),
        situation.step_ns(levers=FREE_HOST),
        situation.step_ns(levers=FREE_DEVICE),
    )

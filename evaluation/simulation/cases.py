"""A case from a seed: machine, workload, wastes and dialect."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulation.dialects import Dialect, dialects_of
from simulation.machine import draw_machine
from simulation.truth import Situation
from simulation.wastes import draw_wastes
from simulation.workloads import Family, draw_workload

__all__ = ["Case", "draw_case"]

COLD_SHARE = 0.06  # recordings that begin with the first step of all


@dataclass(frozen=True)
class Case:
    """One drawn case; the dialect has no part in its truth."""

    seed: int
    index: int
    family: Family
    situation: Situation
    dialect: Dialect

    @property
    def name(self) -> str:
        """Return what makes the case again."""
        return f"{self.seed}:{self.index}"


def draw_case(seed: int, index: int) -> Case:
    """Return a case, the same one on every machine."""
    rng = random.Random(f"simulated {seed} {index}")
    machine = draw_machine(rng)
    workload, make = draw_workload(rng, machine)
    wastes = draw_wastes(rng, workload, machine)
    skipped = 0 if rng.random() < COLD_SHARE else 2
    situation = Situation(machine, make, wastes, rng.randint(5, 7), skipped, rng.randrange(2**31))
    return Case(seed, index, workload.family, situation, rng.choice(dialects_of(machine.gpu.vendor)))

"""What the host works between two instructions that concern the device: a whole step at once, if none is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulation.instructions import HOST, PUSH, Instruction
from simulation.machine import NOISE_LENGTH, Machine
from simulation.timeline import Levers

__all__ = ["HostBetween"]


class HostBetween:
    """The host's work of one rank's step, with everything between two other instructions in one sum."""

    def __init__(
        self, instructions: tuple[Instruction, ...], machine: Machine, levers: Levers, noise: list[float], rank: int
    ) -> None:
        self.noise = np.asarray(noise)
        self.rank = rank
        self.stopping = tuple(instruction for instruction in instructions if instruction[0] > HOST)
        self.stops = np.array([at for at, instruction in enumerate(instructions) if instruction[0] > HOST], np.int64)
        self.keys = np.array([instruction[1] for instruction in instructions], np.int64)
        self.noisy = np.zeros(len(instructions))
        self.fixed = np.zeros(len(instructions))
        record_ns = machine.record_ns * levers.of_host("record")
        for at, instruction in enumerate(instructions):
            code = instruction[0]
            if code <= HOST:
                scale = 1.0 if code == HOST else machine.host
                self.noisy[at] = instruction[3] * scale * levers.of_host(instruction[2])
            if code == PUSH and instruction[5] == "cpu_op":
                self.fixed[at] = record_ns

    def step(self, step: int) -> Iterator[float]:
        """Yield the work before each instruction of ``stopping``, and after the last."""
        noise = self.noise[(self.keys + step * 977 + self.rank * 131) % NOISE_LENGTH]
        total = np.concatenate([[0.0], np.cumsum(self.noisy * noise + self.fixed)])
        edges = np.append(total[self.stops], total[-1])
        return iter(np.diff(edges, prepend=0.0).tolist())

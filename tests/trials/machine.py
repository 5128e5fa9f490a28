"""A machine of numbers: forms of a script with known gains, on a clock of its own that nothing real moves."""

from __future__ import annotations

import numpy as np

from diagnose.trials.turns import Block


class Machine:
    """Drifts slowly, has slow spells, and stalls a step now and then; all from a seed."""

    def __init__(self, seed, *, drift=0.02, spell=1.25, stall=0.01, noise=0.03):
        self.rng = np.random.default_rng(seed)
        self.now = 0.0
        self._drift, self._spell, self._stall, self._noise = drift, spell, stall, noise
        self._level, self._slow_until, self._next_spell = 0.0, 0.0, self.rng.exponential(20.0)

    def steps(self, step_s, seconds):
        """Return the steps of a block, in ns, and let the time pass."""
        if self.now >= self._next_spell:
            self._slow_until = self.now + self.rng.exponential(3.0)
            self._next_spell = self._slow_until + self.rng.exponential(20.0)
        self._level = 0.999 * self._level + self._drift * seconds**0.5 * self.rng.normal()
        slow = self._spell if self.now < self._slow_until else 1.0
        num = max(1, round(seconds / step_s))
        each = step_s * slow * np.exp(self._level + self._noise * self.rng.normal(size=num))
        each = each * np.where(self.rng.random(num) < self._stall, 4.0, 1.0)
        self.now += float(each.sum())
        return (each * 1e9).tolist()


class FakeForm:
    """A form that is ``gain`` times as fast, whose processes differ by ``spread``."""

    def __init__(self, machine, gain=1.0, *, step_s=0.02, spread=0.01):
        self.machine, self.gain, self.step_s, self.spread = machine, gain, step_s, spread
        self.blocks = self.processes = 0
        self.instance = 0.0

    def renew(self):
        self.processes += 1
        self.instance = self.spread * self.machine.rng.normal()

    def block(self, seconds):
        self.blocks += 1
        return Block(self.machine.steps(self.step_s / self.gain * np.exp(self.instance), seconds))

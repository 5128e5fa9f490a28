"""The fixture ``step_budget``: a test that a training step stays within a time, and why where it does not.

    def test_the_step_is_fast_enough(step_budget):
        step_budget(train_step, max_ms=12)

Installed with diagnose; it imports neither torch nor diagnose until a test asks for the fixture.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["StepBudget", "step_budget"]

WARM_UP, TIMED_STEPS = 5, 20


class StepBudget:
    """Called with a step and its budget; ``folder`` takes the report of a step that exceeds it."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.perf_counter) -> None:
        self.folder = folder
        self._clock = clock

    def __call__(
        self, step_fn: Callable[[], object], *, max_ms: float, steps: int = TIMED_STEPS, warm_up: int = WARM_UP
    ) -> float:
        """Run a step several times; return its median time, ms. Above ``max_ms`` fail with a diagnosis.

        The time is taken without a profiler, the device's work included. Only a step that is too slow is recorded.

        Args:
            step_fn: Runs one step; everything it needs is bound to it.
            max_ms: The budget.
            steps: Steps that are timed.
            warm_up: Steps before them.
        """
        __tracebackhide__ = True
        for _ in range(warm_up):
            step_fn()
        took = median(self._seconds(step_fn) for _ in range(steps)) * 1e3
        if took > max_ms:
            pytest.fail(f"A step takes {took:.4g} ms, above its budget of {max_ms:g} ms. {self._why(step_fn)}")
        return took

    def _seconds(self, step_fn: Callable[[], object]) -> float:
        _finish_device_work()
        began = self._clock()
        step_fn()
        _finish_device_work()
        return self._clock() - began

    def _why(self, step_fn: Callable[[], object]) -> str:
        """Return the headline of a diagnosis, its first prescription, and where the report is."""
        import diagnose

        try:
            diagnosis: Diagnosis = diagnose.analyze(step_fn)
            page = diagnosis.to_html(self.folder / "step_budget.html", force=True)
        except diagnose.DiagnoseError as error:
            return f"It could not be diagnosed: {error}"
        first = [f"First: {each.title}." for each in diagnosis.prescriptions[:1]]
        return "\n".join([diagnosis.headline, *first, f"Report: {page}"])


@pytest.fixture
def step_budget(tmp_path: Path) -> StepBudget:
    """Return the function that checks a step's time: ``step_budget(step_fn, max_ms=12)``."""
    return StepBudget(tmp_path)


def _finish_device_work() -> None:
    """Wait for the device, where one is in use."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it without types
        torch.cuda.synchronize()

"""Captures a whole training step as one CUDA graph.

What it cures
    `launch-bound` and `kernel-latency`: the host queues the step once, and no operator is dispatched again.

When it does not help
    Steps whose kernels are long, that read a value on the host (``.item()``, ``print(loss)``) or branch on one, whose
    sizes change each time, or that wait for data. On a CPU the step runs as it is, and ``reason`` states it.

Cost
    The memory of one step stays reserved. The first ``warm_up`` calls run eagerly, the next one is captured.

Numerics
    The same kernels on the same numbers. Python does not run again: a learning rate that is a number stays what it was
    (make it a tensor: ``lr=torch.tensor(3e-4)``), and so do counters and logs within the step.

Example::

    from diagnose.kernels.step_graph import StepGraph

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=torch.cuda.is_available())

    def whole_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = StepGraph(whole_step, "cuda", optimizers=[optimizer])
    for x, y in loader:
        loss = step(x, y)  # a copy: the next step does not overwrite it
    log(step.reason or f"{step.replays} steps replayed")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from diagnose.kernels._nested import Batch, mapped, tensors

__all__ = ["Recorder", "StepGraph"]

WARM_UP = 3
"""Calls before the capture: libraries choose algorithms, optimizers make their state, allocators settle."""

WARM_UP_WITH_DDP = 11
"""DistributedDataParallel builds its buckets anew and times itself in the first steps; torch's own advice."""

Replay = Callable[[], None]


class Recorder(Protocol):
    """What a step graph needs of a device."""

    def warm(self, run: Callable[[], Batch]) -> Batch:
        """Run eagerly, off the default stream."""

    def capture(self, run: Callable[[], Batch]) -> tuple[Replay, Batch]:
        """Record what ``run`` would do; return what does it, and where its results will be."""


class StepGraph:
    """Calls ``step`` with a batch, by replaying it once it was captured.

    ``step`` takes tensors, or nestings of them, and returns tensors; everything it does is on ``device``. Other
    arguments must be equal in each call. A batch of other sizes, such as the last one, runs eagerly; ``eager`` counts
    those beside the warm-up and ``replays`` the rest. ``reason`` is why nothing is replayed, None while it can be.

    Raises:
        ValueError: ``warm_up`` is less than one, or an optimizer is not ``capturable`` on a CUDA device.
    """

    def __init__(
        self,
        step: Callable[..., Batch],
        device: torch.device | str,
        *,
        optimizers: Sequence[Optimizer] = (),
        warm_up: int = WARM_UP,
        recorder: Recorder | None = None,
    ) -> None:
        if warm_up < 1:
            raise ValueError(f"StepGraph needs warm_up >= 1, not {warm_up}; with DDP it should be {WARM_UP_WITH_DDP}.")
        self.step, self.warm_up = step, warm_up
        self.device = torch.device(device)
        self.reason: str | None = None
        self.calls = self.replays = self.eager = 0
        self._recorder = recorder or self._default_recorder()
        if self._recorder is not None:
            _check(optimizers)
        self._inputs: Batch = None
        self._outputs: Batch = None
        self._replay: Replay | None = None

    def __call__(self, *batch: Batch) -> Batch:
        """Run one step on the batch and return its results, in memory of their own."""
        self.calls += 1
        if self._recorder is None:
            return self._run_eagerly(batch)
        if self._replay is None:
            if self.calls <= self.warm_up:
                return self._recorder.warm(lambda: self.step(*batch))
            if not self._capture(self._recorder, batch):
                return self._run_eagerly(batch)
        if not _fits(batch, self._inputs):
            return self._run_eagerly(batch)
        for mine, given in zip(tensors(self._inputs), tensors(batch), strict=True):
            mine.copy_(given, non_blocking=True)
        assert self._replay is not None
        self._replay()
        self.replays += 1
        return mapped(self._outputs, lambda output: output.clone())

    def _default_recorder(self) -> Recorder | None:
        if self.device.type == "cuda" and torch.cuda.is_available():
            return _CudaRecorder(self.device)
        self.reason = f"CUDA graphs need a CUDA device, not {self.device.type}"
        return None

    def _run_eagerly(self, batch: tuple[Batch, ...]) -> Batch:
        self.eager += 1
        return self.step(*batch)

    def _capture(self, recorder: Recorder, batch: tuple[Batch, ...]) -> bool:
        """Capture the step on buffers of its own; where that fails, keep the reason and stay eager for good."""
        try:
            self._inputs = mapped(batch, lambda tensor: torch.empty_like(tensor, device=self.device))
            for mine, given in zip(tensors(self._inputs), tensors(batch), strict=True):
                mine.copy_(given)
            self._replay, self._outputs = recorder.capture(lambda: self.step(*self._inputs))
        except Exception as error:  # whatever of the step cannot be captured
            self._recorder, self._inputs = None, None
            first = str(error).strip().partition("\n")[0]
            self.reason = f"the step cannot be captured ({type(error).__name__}: {first})"
            return False
        return True


class _CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm(self, run: Callable[[], Batch]) -> Batch:
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            result = run()
        current = torch.cuda.current_stream(self.stream.device)
        current.wait_stream(self.stream)
        for tensor in tensors(result):
            tensor.record_stream(current)
        return result

    def capture(self, run: Callable[[], Batch]) -> tuple[Replay, Batch]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            outputs = run()
        return graph.replay, outputs


def _check(optimizers: Sequence[Optimizer]) -> None:
    for optimizer in optimizers:
        if any(group.get("capturable") is False for group in optimizer.param_groups):
            name = type(optimizer).__name__
            raise ValueError(f"{name} counts its steps on the host; make it {name}(..., capturable=True).")


def _fits(batch: Batch, inputs: Batch) -> bool:
    """Return whether the batch has the sizes and dtypes of the captured one, and equal other values."""
    given, mine = tensors(batch), tensors(inputs)
    same = len(given) == len(mine) and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(given, mine, strict=True)
    )
    return same and bool(_rest(batch) == _rest(inputs))


def _rest(batch: Batch) -> Any:  # the nesting without its tensors
    return mapped(batch, lambda _: None)

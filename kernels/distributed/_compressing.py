"""Hooks that compress buckets from some step on, and may send later what compressing dropped."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._hook import Bucket, CommHook, Rounds, run_rounds
from diagnose.kernels.distributed._residuals import Residuals

__all__ = ["Compressing"]


class Compressing(CommHook):
    """Reduces gradients as DDP does for ``warm_up`` steps, and then by ``rounds``.

    With ``error_feedback`` what compressing drops is added to the next step's gradients, in each rank.
    """

    def __init__(self, *, error_feedback: bool, warm_up: int) -> None:
        super().__init__()
        self.error_feedback, self.warm_up = error_feedback, warm_up
        self.step = 0
        self.residuals = Residuals()
        self.parameters: dict[str, Tensor] = {}

    @abstractmethod
    def rounds(self, bucket: Bucket) -> Rounds:
        """Reduce a bucket, compressed."""

    def check(self, ddp: DistributedDataParallel) -> None:
        """Learn the parameters."""
        self.parameters = dict(ddp.module.named_parameters())

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Reduce one bucket; the last one of a backward pass counts the step."""
        compresses = self.step >= self.warm_up
        self.step += bucket.is_last()
        rounds = self.rounds(bucket) if compresses else self._plain(bucket)
        return run_rounds(rounds, self.group, bucket.buffer().device)

    def _plain(self, bucket: Bucket) -> Rounds:
        buffer = bucket.buffer()
        buffer.div_(self.group.size())
        self.count(bucket, buffer)
        yield lambda: dist.all_reduce(buffer, group=self.group, async_op=True), (buffer,)
        return buffer

    def state_dict(self) -> dict[str, Any]:
        """Return the step, and what this rank has not sent yet."""
        return {"step": self.step, "residuals": self.residuals.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back; load each rank's own.

        Raises:
            ValueError: it is the state of another hook.
        """
        if set(state_dict) != set(self.state_dict()):
            raise ValueError(
                f"The hook {self.name!r} was handed a state with {sorted(state_dict)}, which is another hook's."
            )
        self.residuals.load_state_dict(state_dict["residuals"], self.parameters)
        self.step = state_dict.get("step", 0)  # a hook without warm-up may leave it out

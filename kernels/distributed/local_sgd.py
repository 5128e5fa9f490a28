"""Averages parameters every few steps instead of gradients.

What it cures
    `exposed-communication` and `straggler` time on slow links: ranks meet once in ``every`` steps
    (post-local SGD, Lin et al. 2018).

When it does not help
    Models whose averages train worse: the larger ``every`` and the learning rate, the further ranks drift. Buffers that
    DDP broadcasts in each forward still make ranks meet: build it with ``forward_sync_buffers=False`` (before torch
    2.13 ``broadcast_buffers=False``).

Cost
    An all-reduce of all parameters every ``every`` steps, in pieces of 25 MB, and memory for one piece.

Numerics
    Different from step ``start`` on: ranks take steps of their own and meet at their mean; momentum stays each rank's
    own. Up to ``start`` as with plain DDP. Call ``average`` before evaluating or saving. How far the loss was from
    plain DDP in the tests: evaluation/pages/remedies.md.

Example::

    from diagnose.kernels.distributed.local_sgd import LocalSGD

    ddp = DistributedDataParallel(model)
    local = LocalSGD(ddp, optimizer, start=1000, every=8)
    for x, y in loader:
        criterion(ddp(x), y).backward()
        local.step()  # in place of optimizer.step()
        optimizer.zero_grad()
    local.average()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from diagnose.kernels.distributed._hook import Bucket, CommHook, done, num_bytes
from diagnose.kernels.distributed.comm_hooks import install

__all__ = ["LocalSGD"]

PIECE_BYTES = 25 * 1024 * 1024  # as DDP's buckets: large enough for the link, small beside the model


class LocalSGD:
    """Lets ranks train apart from step ``start`` on, and averages their parameters every ``every`` steps.

    ``inside`` is a group of ranks (those of a host) that go on exchanging gradients in each step. ``steps`` counts.

    Raises:
        ValueError: ``start`` is negative or ``every`` less than one, or the model has another hook.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        optimizer: Optimizer,
        *,
        start: int = 1000,
        every: int = 8,
        inside: dist.ProcessGroup | None = None,
    ) -> None:
        if start < 0 or every < 1:
            raise ValueError(f"LocalSGD needs start >= 0 and every >= 1, not start={start} and every={every}.")
        self.optimizer, self.start, self.every = optimizer, start, every
        self.steps = 0
        self.hook = install(ddp, _Inside(self, inside))
        self.ddp = ddp

    @property
    def is_apart(self) -> bool:
        """Return whether the next step is each rank's own."""
        return self.steps >= self.start

    def step(self) -> None:
        """Step the optimizer, and average where it is time; on all ranks."""
        self.optimizer.step()
        self.after_step()

    def after_step(self) -> None:
        """Count a step that was taken otherwise (by a gradient scaler, say), and average where it is time."""
        self.steps += 1
        apart = self.steps - self.start
        if apart > 0 and apart % self.every == 0:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Set parameters and floating-point buffers to their mean over all ranks."""
        group = self.ddp.process_group
        buffers = [b for b in self.ddp.module.buffers() if b.is_floating_point()]
        for piece in _pieces([*self.ddp.module.parameters(), *buffers]):
            flat = torch.cat([t.detach().reshape(-1) for t in piece]).div_(group.size())
            dist.all_reduce(flat, group=group)
            for tensor, mean in zip(piece, torch.split(flat, [t.numel() for t in piece]), strict=True):
                tensor.copy_(mean.view(tensor.shape))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps; save it beside the averaged model."""
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is the state of something else.
        """
        if set(state_dict) != {"steps"}:
            raise ValueError(f"A state with {sorted(state_dict)} is not one of LocalSGD.")
        self.steps = int(state_dict["steps"])


class _Inside(CommHook):
    name = "local_sgd"
    takes_sparse = True

    def __init__(self, owner: LocalSGD, inside: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.owner, self.inside = owner, inside

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Average over all ranks at first, then over those inside, or not at all."""
        buffer = bucket.buffer()
        group = self.inside if self.owner.is_apart else self.group
        if group is None:
            self.count(bucket)
            return done(buffer)
        self.count(bucket, buffer.div_(group.size()))
        work = dist.all_reduce(buffer, group=group, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
        return future


def _pieces(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one dtype and device together, up to the size of a piece."""
    for kind in dict.fromkeys((t.dtype, t.device) for t in tensors):
        piece: list[Tensor] = []
        for tensor in (t for t in tensors if (t.dtype, t.device) == kind):
            if piece and num_bytes([*piece, tensor]) > PIECE_BYTES:
                yield piece
                piece = []
            piece.append(tensor)
        yield piece

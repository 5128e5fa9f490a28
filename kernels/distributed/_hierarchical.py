"""Gradients summed inside each host first, so that between hosts each rank sends its share only."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._hook import Bucket, CommHook, Rounds, all_gather, reduce_scatter, run_rounds

__all__ = ["Hierarchical"]


class Hierarchical(CommHook):
    """Reduces over a mesh of hosts × ranks of a host: scatter inside, sum between, gather inside.

    ``mesh`` has two dimensions, the outer one between hosts. ``dtype`` is what crosses between hosts.

    Raises:
        ValueError: the mesh has not two dimensions, or not the ranks of the model.
    """

    name = "hierarchical"

    def __init__(self, *, mesh: DeviceMesh, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if mesh.ndim != 2:
            raise ValueError(f"The hook 'hierarchical' needs a mesh of hosts × ranks, not of {mesh.ndim} dimensions.")
        self.mesh, self.dtype = mesh, dtype
        self.between, self.inside = mesh.get_group(0), mesh.get_group(1)

    def check(self, ddp: DistributedDataParallel) -> None:
        """Compare the mesh's ranks with the model's."""
        ranks = sorted(self.mesh.mesh.flatten().tolist())
        if ranks != sorted(dist.get_process_group_ranks(ddp.process_group)):
            raise ValueError(
                f"The hook 'hierarchical' got a mesh of the ranks {ranks}, and the model has others; "
                "build the mesh over all ranks of the model's process group."
            )

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Reduce one bucket."""
        return run_rounds(self._rounds(bucket), self.group, bucket.buffer().device)

    def _rounds(self, bucket: Bucket) -> Rounds:
        buffer, num_inside = bucket.buffer(), self.inside.size()
        buffer.div_(self.group.size())
        whole = functional.pad(buffer, (0, -len(buffer) % num_inside))
        share = whole.new_empty(len(whole) // num_inside)
        yield lambda: reduce_scatter(share, whole, group=self.inside, async_op=True), (whole, share)
        sent = share if self.dtype is None else share.to(self.dtype)
        yield lambda: dist.all_reduce(sent, group=self.between, async_op=True), (sent,)
        self.count(bucket, sent)
        summed = sent.to(share.dtype)
        yield lambda: all_gather(whole, summed, group=self.inside, async_op=True), (summed,)
        if whole is not buffer:
            buffer.copy_(whole[: len(buffer)])
        return buffer

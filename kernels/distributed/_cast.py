"""Gradients sent as they are, or in 16 bits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from diagnose.kernels.distributed._hook import Bucket, CommHook

__all__ = ["BFloat16", "Float16", "Plain"]


class Plain(CommHook):
    """Means over the ranks, as without a hook: what the others are compared with."""

    name = "plain"
    takes_sparse = True
    dtype: torch.dtype | None = None

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Divide, then sum: so that sums do not overflow."""
        buffer = bucket.buffer()
        buffer.div_(self.group.size())
        sent = buffer if self.dtype is None else buffer.to(self.dtype)
        self.count(bucket, sent)

        def received(future: Future[Any]) -> Tensor:
            reduced: Tensor = future.value()[0]
            return reduced if reduced is buffer else buffer.copy_(reduced)

        work = dist.all_reduce(sent, group=self.group, async_op=True)
        future: Future[Tensor] = work.get_future().then(received)
        return future


class Float16(Plain):
    """Half the bytes, with 11 bits of mantissa; means below 6e-8 vanish, above 65504 they overflow."""

    name = "fp16"
    takes_sparse = False  # torch adds no sparse tensors of float16
    dtype = torch.float16


class BFloat16(Plain):
    """Half the bytes, with 8 bits of mantissa and the range of float32; also on gloo."""

    name = "bf16"
    dtype = torch.bfloat16

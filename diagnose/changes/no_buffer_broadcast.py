"""Leave DistributedDataParallel's broadcast of buffers out.

What it does
    Makes DistributedDataParallel with `broadcast_buffers=False`, so that a forward does not wait for rank 0's buffers.

What to watch
    Running statistics of batch norm then differ from rank to rank; SyncBatchNorm keeps them equal.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, Change, Patch, SetArguments, identical
from diagnose.changes.common.gradients import CONSTRUCTORS
from diagnose.changes.patches import distributed

CHANGE = Change(
    id="no-buffer-broadcast",
    title="Do not broadcast buffers in every forward",
    numerics=identical(
        "where training reads no buffer; ranks keep batch-norm statistics of their own: evaluate with rank 0's"
    ),
    patch=Patch(distributed.no_buffer_broadcast),
    edit=SetArguments(CONSTRUCTORS, {"broadcast_buffers": False}),
    advice=Advice(
        before="model = DistributedDataParallel(model, device_ids=[local_rank])",
        after="model = DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)",
        least=0.7,
    ),
    remedy="diagnose.kernels.distributed.ddp_arguments",
)

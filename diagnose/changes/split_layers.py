"""Split layers, or the sequence of layers, over ranks.

What it does
    Splits wide linear layers by columns and rows (tensor parallelism), or gives each rank a part of the depth and feeds
    it small batches (a pipeline).

What to watch
    Tensor parallelism exchanges activations in every block: inside one host only. A pipeline waits at both its ends.
    With both, all ranks take the same batch: leave DistributedDataParallel and DistributedSampler out, and let
    ``batch_size`` be that of all ranks. The split is checked with one batch, and refused if the model computes
    something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.changes.common.memory import num_ranks, share_freed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    ranks = num_ranks(finding)
    return Advice(
        after="from diagnose.kernels.distributed.mesh import build_mesh\n"
        "from diagnose.kernels.distributed.tensor_parallel import clip_gradients, tensor_parallel\n\n"
        f'mesh = build_mesh("cuda", {{"tensor": {ranks}}})   # within one host, in place of DistributedDataParallel\n'
        "x, y = next(iter(loader))   # without DistributedSampler: all ranks take the same batches\n"
        'tensor_parallel(model, mesh["tensor"], sample=(x.to("cuda"),), data_ranks=1)   # then make the optimizer\n'
        "# clip_gradients(model.parameters(), max_norm) in place of clip_grad_norm_\n"
        "# or, over slow links: diagnose.kernels.distributed.pipelined\n"
        f"# Pipeline(layers, criterion, num_micro_batches={4 * ranks}), clipped by its clip_gradients(max_norm)",
        needs="linear layers in pairs, or a model that is a sequence of layers",
        frees_bytes=share_freed(finding, "model") // 2,
    )


def _applies(program: Program, finding: Finding) -> str:
    if num_ranks(finding) < 2:
        return "a single process has no other rank to share with"
    if "product" not in program.heavy:
        return "no linear layers were recorded"
    return to_training(program, finding)


CHANGE = Change(
    id="split-layers",
    title="Split wide layers, or the depth of the model, over the ranks",
    numerics=rounding("products are summed in parts; compare the loss of the first steps"),
    patch=ByHand("which layers belong together only the model's author knows"),
    edit=ByHand("which layers belong together only the model's author knows"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.distributed.tensor_parallel",
    modules=("diagnose.kernels.distributed.mesh", "diagnose.kernels.distributed.pipelined"),
)

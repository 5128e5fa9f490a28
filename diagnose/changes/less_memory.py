"""Hold less on the device: the optimizer's state and the activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training, to_training
from diagnose.changes.common.change import Change, EditLoop, Patch, Proposal, identical, reduced
from diagnose.changes.common.memory import (
    ACTIVATIONS,
    OPTIMIZER,
    copied_ns,
    forward_again_ns,
    freed_by,
    held,
    num_ranks,
)
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


# Of the optimizer's state in 8 bits, and of the activations with every block computed again, what goes; measured
# (evaluation/pages/remedies-memory.md).
SPARED = 0.74
IMPORT_ADAMW = "from diagnose.kernels.eight_bit import eight_bit_adamw"
IMPORT_ZERO = "from diagnose.kernels.distributed.zero import zero_optimizer"


def _eight_bit_optimizer_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)",
        after=f"{IMPORT_ADAMW}\n\n"
        "optimizer = eight_bit_adamw(model, lr=lr)   # betas, eps and weight_decay as they are",
        needs="the package bitsandbytes or torchao",
        frees_bytes=int(held(finding, OPTIMIZER) * SPARED),
    )


def _offload_optimizer_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)   # or another",
        after="from diagnose.kernels.offload import offload_optimizer_state\n\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr)   # as it is\n"
        "state = offload_optimizer_state(optimizer)",
        needs="pinned memory on the host for the state, and the time of two copies a step",
        frees_bytes=held(finding, OPTIMIZER),
        costs_ns=copied_ns(finding, held(finding, OPTIMIZER), hidden=False),
    )


def _shard_optimizer_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    name = finding.facts.get("optimizer") or "AdamW"
    return Proposal(
        before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
        after=f"{IMPORT_ZERO}\n\noptimizer = zero_optimizer(torch.optim.{name}, model.parameters(), lr=lr)",
        needs="several ranks, and more parameters than ranks",
        frees_bytes=freed_by(finding, (OPTIMIZER,)),
    )


def _offload_activations_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="loss = criterion(model(x), y)",
        after="from diagnose.kernels.offload import ActivationOffload\n\noffload = ActivationOffload()\n"
        "with offload:\n    loss = criterion(model(x), y)",
        needs="pinned memory on the host, and a link that keeps up with the step",
        frees_bytes=held(finding, ACTIVATIONS),
        spares_samples=True,
        costs_ns=copied_ns(finding, held(finding, ACTIVATIONS), hidden=True),
    )


def _checkpoint_blocks_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="loss = criterion(model(x), y)",
        after="from diagnose.kernels.checkpointing import checkpoint_blocks, plan_checkpoints\n\n"
        "checkpoint_blocks(model)     # before DDP, fully_shard and compile\n"
        "# or the fewest blocks for a target: plan_checkpoints(model, forward, target_bytes=2 << 30)\n"
        "loss = criterion(model(x), y)",
        needs="up to a third more time; plan_checkpoints chooses the fewest blocks under a memory target",
        frees_bytes=int(held(finding, ACTIVATIONS) * SPARED),
        spares_samples=True,
        costs_ns=forward_again_ns(finding),
    )


CHANGES = (
    Change(
        id="eight-bit-optimizer",
        page="""Keep AdamW's moments in 8 bits.

What it does
    `eight_bit_adamw(model, lr=lr)` replaces `torch.optim.AdamW`. Its state takes about a quarter of the memory.

What to watch
    It needs bitsandbytes or torchao. Embeddings keep 32 bits. Checkpoints contain the quantized state.
""",
        title="Keep AdamW's moments in 8 bits",
        numerics=reduced("moments are kept in 8 bits; compare the loss curve"),
        edit=EditLoop("with_eight_bit_adamw", "device", "cuda", IMPORT_ADAMW),
        proposal=_eight_bit_optimizer_proposal,
        applies=lambda program, finding: (
            finding.facts.get("optimizer") in ("AdamW", None) and to_training(program, finding)
        ),
        remedy="diagnose.kernels.eight_bit",
    ),
    Change(
        id="offload-optimizer",
        page="""Keep the optimizer's state in host memory between steps.

What it does
    `offload_optimizer_state(optimizer)` moves the state to pinned memory after each update, and back before the next.

What to watch
    Both copies lengthen the step. If you call `state.fetch()` earlier, the second one is overlapped.
""",
        title="Keep the optimizer's state in host memory between steps",
        numerics=identical(),
        patch=Patch(memory.offload_optimizer, needs_gpu=True, group="optimizer"),
        proposal=_offload_optimizer_proposal,
        applies=to_training,
        remedy="diagnose.kernels.offload",
    ),
    Change(
        id="shard-optimizer",
        page="""Split the optimizer's state over the ranks.

What it does
    `zero_optimizer(torch.optim.AdamW, model.parameters(), lr=lr)` replaces the optimizer, next to
    DistributedDataParallel (ZeRO, first stage). Each rank keeps and updates its share of the state.

What to watch
    After each step the updated parameters are broadcast: as many bytes as the model has, not overlapped.
""",
        title="Split the optimizer's state over the ranks",
        numerics=identical(),
        edit=EditLoop("with_zero_optimizer", "device", "cuda", IMPORT_ZERO),
        proposal=_shard_optimizer_proposal,
        applies=lambda program, finding: num_ranks(finding) > 1 and to_data_parallel_training(program, finding),
        remedy="diagnose.kernels.distributed.zero",
    ),
    Change(
        id="offload-activations",
        page="""Keep activations in host memory until the backward pass needs them.

What it does
    Runs the forward under `with ActivationOffload():`. Saved tensors are copied to pinned memory, and back before the
    backward needs them.

What to watch
    If the copies take longer than the computation, the step waits for them.
""",
        title="Keep activations in host memory until the backward pass",
        numerics=identical(),
        patch=Patch(memory.offload_activations, needs_gpu=True),
        proposal=_offload_activations_proposal,
        applies=to_training,
        remedy="diagnose.kernels.offload",
    ),
    Change(
        id="checkpoint-blocks",
        page="""Compute repeated blocks again in the backward pass.

What it does
    `checkpoint_blocks(model)` keeps only the inputs of repeated blocks. The backward computes their activations again.

What to watch
    A step takes up to a third longer. `plan_checkpoints` finds the fewest blocks for a memory target. Call it before
    DDP, `fully_shard` and `torch.compile`.
""",
        title="Keep fewer activations: compute repeated blocks again in the backward pass",
        numerics=identical(),
        patch=Patch(memory.checkpoint_blocks),
        proposal=_checkpoint_blocks_proposal,
        applies=to_training,
        remedy="diagnose.kernels.checkpointing",
    ),
)

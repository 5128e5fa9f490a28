"""GPU memory is nearly full.

What it looks for
    Allocations that succeeded only after the allocator emptied its cache, or a reserved peak of 97% of the memory. With
    NVML samples, also 99% in use by all processes.

Why it costs
    Emptying the cache waits for all queued work. The next longer sequence may run out of memory.

What to do
    Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, checkpoint repeated blocks, or accumulate gradients over
    smaller batches.

How sure
    High: the allocator counts these retries. Needs memory events.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, in_training, rounding
from diagnose.analyzers.common.avoidable import held_values
from diagnose.analyzers.common.memory import GROWING, driver_evidence, forward_ns
from diagnose.model.diagnosis import Finding
from diagnose.model.numerics import number
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import gpu_spec
from diagnose.text.numbers import plural

META = RuleMeta(
    id="memory-pressure",
    kind="state",
    order=50,
    changes=("expandable-segments", "checkpoint-blocks"),
    needs=("memory events",),
    also=(
        "accumulate-gradients",
        "offload-activations",
        "fused-loss",
        "eight-bit-optimizer",
        "offload-optimizer",
        "shard-optimizer",
        "shard-model",
        "split-layers",
        "find-memory",
        "find-batch-size",
        "group-lengths",
    ),
)
_SHARD = Advice(
    id="shard-model",
    title="Shard parameters, gradients and optimizer state over the ranks",
    numerics=rounding("gradients are summed in another order; compare_with_one_process checks the first steps"),
    before="model = DistributedDataParallel(model, device_ids=[local_rank])",
    after="""from diagnose.kernels.distributed.fully_sharded import fully_sharded
from diagnose.kernels.distributed.memory_estimate import estimate_memory
from diagnose.kernels.distributed.mesh import build_mesh

for strategy in ("ddp", "zero", "fsdp"):   # bytes of a rank, from shapes only
    print(estimate_memory(model, strategy, num_ranks={ranks}, optimizer=torch.optim.AdamW))
model = fully_sharded(model, build_mesh("cuda", {"shard": -1}))   # before the optimizer
# afterwards compare_with_one_process (diagnose.kernels.distributed.single_process_parity) checks the numbers""",
    needs="repeated blocks, and an optimizer that is made afterwards",
    watch="Parameters are gathered in forward and backward: the exchange grows by half.",
    when=lambda f, p: number(f.facts, "world_size") > 1 and p.is_ddp is not False and in_training(f, p),
    frees=("parameters", "gradients", "optimizer state"),
    remedy="diagnose.kernels.distributed.fully_sharded",
    modules=("diagnose.kernels.distributed.memory_estimate", "diagnose.kernels.distributed.mesh"),
)
ADVICE = (
    _SHARD,
    Advice(
        id="split-layers",
        title="Split wide layers, or the depth of the model, over the ranks",
        numerics=rounding("products are summed in parts; compare the loss of the first steps"),
        before="",
        after="""from diagnose.kernels.distributed.mesh import build_mesh
from diagnose.kernels.distributed.tensor_parallel import clip_gradients, tensor_parallel

mesh = build_mesh("cuda", {"tensor": {ranks}})   # within one host, in place of DistributedDataParallel
x, y = next(iter(loader))   # without DistributedSampler: all ranks take the same batches
tensor_parallel(model, mesh["tensor"], sample=(x.to("cuda"),), data_ranks=1)   # then make the optimizer
# clip_gradients(model.parameters(), max_norm) in place of clip_grad_norm_
# or, over slow links, Pipeline of diagnose.kernels.distributed.pipelined""",
        needs="linear layers in pairs, or a model that is a sequence of layers",
        watch="Tensor parallelism exchanges activations in every block: inside one host only.",
        when=lambda f, p: number(f.facts, "world_size") > 1 and "product" in p.heavy and in_training(f, p),
        frees=_SHARD.frees,
        frees_share=0.5,
        remedy="diagnose.kernels.distributed.tensor_parallel",
        modules=("diagnose.kernels.distributed.mesh", "diagnose.kernels.distributed.pipelined"),
    ),
)


def find(t: Tables) -> list[Finding]:
    """State how full it is."""
    memory = t.memory
    if memory is None or not memory.capacity:
        return []
    reserved = memory.peak_reserved or memory.peak_allocated
    retries = memory.retries or 0
    total = max(memory.device_total or 0, memory.capacity)
    # By the driver's count nothing else comes on top.
    is_full = reserved >= 0.97 * memory.capacity or (memory.device_used or 0) >= 0.99 * total
    if not retries and not is_full:
        return []
    spec = gpu_spec(t)
    held = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in list(memory.by_category.items())[:4])
    return [
        Finding(
            rule=META.id,
            title=f"Memory is full: {plural(retries, 'allocation')} had to empty the cache first"
            if retries
            else "Memory is full but for a few per cent",
            lost_ns=0.0,
            count=max(retries, 1),
            evidence=(
                f"{reserved / 1e9:.2f} GB of {memory.capacity / 1e9:.2f} GB are reserved at the peak; "
                f"then {memory.peak_allocated / 1e9:.2f} GB are allocated: {held}.",
                *driver_evidence(memory),
                *held_values(t),
            ),
            where=tuple(where for where, _ in memory.by_place[:3]),
            facts={
                "by_category": dict(memory.by_category),
                "world_size": t.trace.world_size,
                "allocated": memory.peak_allocated,
                "capacity": memory.capacity - (memory.outside_allocator or 0),
                "growing": sum(memory.by_category.get(name, 0) for name in GROWING),
                "forward_ns": forward_ns(t),
                "link_gb_s": spec.pcie if spec else 0.0,
                "optimizer": t.capture.known.optimizer.name,
            },
        )
    ]

"""What collectives serve, in jobs that exchange in one group and in several."""

import pytest

from diagnose.ranks.collectives import collectives_of

KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "alltoall": "ncclDevKernel_SendRecv",
    "send": "ncclDevKernel_SendRecv",
}
DDP, FSDP, BACKWARD = (
    "DistributedDataParallel.forward",
    "FSDP::all_gather (layers.0)",
    "autograd::engine::evaluate_function: MmBackward0",
)
WORLD, DATA, TENSOR, PLAIN, EXPERT, CONTEXT, SHARDS = (
    ("0", "default_pg", "0,1,2,3"),
    ("3", "mesh_dp", "0,2"),
    ("4", "mesh_tp", "0,1"),
    ("4", "undefined", "0,1"),
    ("5", "EXPERT_MODEL_PARALLEL_GROUP", "0,1"),
    ("6", "mesh_cp", "0,1"),
    ("7", "mesh_dp_shard_cp", "0,1,2,3"),
)


def purposes(recording, *steps, wrapper):
    """Return the purposes of collectives, each given by its name, its group and where it was launched."""
    r = recording()
    r.step(1, 0, 1000)
    r.annotation(wrapper, 10, 200)
    r.op(BACKWARD, 300, 600)
    for i, (name, (group, use, members), where) in enumerate(steps):
        at = {"wrapper": 20, "forward": 220, "backward": 310}[where] + 5 * i
        task = r.kernel(KERNELS[name], 700 + 20 * i, 710 + 20 * i, launched=(at, at + 2), stream=20)
        size = members.count(",") + 1
        detail = r._name(f"{name}|Float|{size}|1024|-1|-1|{group}|{use}|{members}")
        task.values |= {"size": 1024, "detail": detail}
    found = collectives_of(r.tables())
    return [found.kinds[kind].purpose for kind in found.collectives.kind.tolist()]


@pytest.mark.parametrize("world", [WORLD, DATA])
def test_reductions_of_ddp_are_buckets_and_those_of_tensor_parallel_layers_are_not(recording, world):
    steps = [
        ("allreduce", TENSOR, "forward"),
        ("allreduce", TENSOR, "backward"),
        ("allreduce", world, "backward"),
        ("allreduce", TENSOR, "backward"),
        ("alltoall", world, "forward"),
    ]
    tensor = "tensor-parallel"
    assert purposes(recording, *steps, wrapper=DDP) == [tensor, tensor, "ddp-bucket", tensor, "all-to-all"]


def test_a_group_without_a_description_that_reduces_in_the_forward_too_is_not_that_of_ddp(recording):
    steps = [("allreduce", PLAIN, "forward"), ("allreduce", PLAIN, "backward"), ("allreduce", WORLD, "backward")]
    assert purposes(recording, *steps, wrapper=DDP) == ["", "", "ddp-bucket"]


def test_where_all_is_reduced_in_one_group_what_the_backward_reduces_are_buckets(recording):
    steps = [("allreduce", WORLD, "forward"), ("allreduce", WORLD, "backward")]
    assert purposes(recording, *steps, wrapper=DDP) == ["", "ddp-bucket"]
    assert purposes(recording, *steps, wrapper="train") == ["", ""]


@pytest.mark.parametrize(("other", "named"), [(TENSOR, "tensor-parallel"), (PLAIN, "")])
def test_gathers_of_fsdp_are_told_from_those_of_tensor_parallel_layers(recording, other, named):
    steps = [
        ("_allgather_base", DATA, "wrapper"),
        ("_allgather_base", other, "forward"),
        ("_allgather_base", DATA, "backward"),
        ("_reduce_scatter_base", other, "backward"),
        ("_reduce_scatter_base", DATA, "backward"),
    ]
    assert purposes(recording, *steps, wrapper=FSDP) == ["fsdp-gather", named, "fsdp-gather", named, "fsdp-scatter"]


def test_fsdp_whose_ranges_lie_elsewhere_gathers_in_every_group_that_is_not_described_otherwise(recording):
    steps = [("_allgather_base", DATA, "forward"), ("_allgather_base", TENSOR, "forward")]
    assert purposes(recording, *steps, wrapper=FSDP) == ["fsdp-gather", "tensor-parallel"]


def test_what_experts_and_parts_of_the_sequence_exchange_is_told_from_other_exchanges(recording):
    steps = [
        ("alltoall", EXPERT, "forward"),
        ("alltoall", CONTEXT, "forward"),
        ("alltoall", WORLD, "forward"),
        ("send", CONTEXT, "forward"),
        ("send", WORLD, "forward"),
        ("allreduce", EXPERT, "backward"),
        ("allreduce", DATA, "backward"),
    ]
    assert purposes(recording, *steps, wrapper=DDP) == [
        "expert-parallel", "context-parallel", "all-to-all", "context-parallel", "pipeline", "expert-parallel",
        "ddp-bucket",
    ]  # fmt: skip


def test_a_mesh_of_data_and_context_parallel_ranks_gathers_for_fsdp(recording):
    steps = [("_allgather_base", SHARDS, "wrapper"), ("_allgather_base", CONTEXT, "forward")]
    assert purposes(recording, *steps, wrapper=FSDP) == ["fsdp-gather", "context-parallel"]


@pytest.mark.parametrize(
    ("use", "serves"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor-parallel"), ("EXPERT_TENSOR_PARALLEL_GROUP", "tensor-parallel"),
        ("EXPERT_DATA_PARALLEL_GROUP", ""), ("mesh_ep", "expert-parallel"), ("ep_size_8", "expert-parallel"),
        ("CONTEXT_PARALLEL_GROUP", "context-parallel"), ("deepspeed", ""), ("undefined", ""),
    ],
)  # fmt: skip
def test_a_description_names_what_the_ranks_share(recording, use, serves):
    assert purposes(recording, ("allreduce", ("8", use, "0,1"), "forward"), wrapper="train") == [serves]

"""What needs four ranks: two hosts of two, as far as the code can tell."""

import copy
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from checks_sharding import adam, alike, compared, criterion, deep, held, stepping
from checks_split import Deep
from setting import gradients_of, hooked, network, same_on_all_ranks, trained
from test_topology import FakeDriver
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed import mesh as mesh_module
from diagnose.kernels.distributed._topology import link_levels
from diagnose.kernels.distributed.comm_hooks import comm_hook, install
from diagnose.kernels.distributed.fully_sharded import fully_sharded
from diagnose.kernels.distributed.memory_estimate import estimate_memory
from diagnose.kernels.distributed.mesh import build_mesh, hosts, linked_ranks, two_levels
from diagnose.kernels.distributed.pipelined import Pipeline
from diagnose.kernels.distributed.single_process_parity import compare_with_one_process
from diagnose.kernels.distributed.tensor_parallel import tensor_parallel


def host():
    return f"host{dist.get_rank() // 2}"


def check_hosts_are_found_and_two_levels_follow_them():
    assert hosts(host()) == [[0, 1], [2, 3]]
    assert hosts() == [[0, 1, 2, 3]]
    mesh = two_levels("cpu", host=host())
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="equally many ranks in a row"):
        two_levels("cpu", host=f"host{dist.get_rank() % 2}")
    with pytest.raises(ValueError, match="equally many ranks in a row"):
        two_levels("cpu", host=f"host{dist.get_rank() == 3}")


def check_links_within_a_host_make_the_groups():
    driver = FakeDriver({frozenset("02"), frozenset("13")})  # NVLink bridges between every other GPU
    uuid = f"{dist.get_rank()}"
    assert linked_ranks(uuid=uuid, nvml=driver) == [[0, 2], [1, 3]]
    assert linked_ranks(host=host(), uuid=uuid, nvml=driver) == [[0, 1], [2, 3]], "hosts come first"
    assert linked_ranks(uuid="0", nvml=driver) == [[0, 1, 2, 3]], "ranks that share a GPU"
    assert linked_ranks() == [[0, 1, 2, 3]], "no GPU"
    with mock.patch.multiple(mesh_module, _current_uuid=lambda: uuid, link_levels=lambda _, u: link_levels(driver, u)):
        with mock.patch.dict(sys.modules, pynvml=driver):
            groups = linked_ranks()
        assert groups == [[0, 2], [1, 3]]
    mesh = DeviceMesh("cpu", groups, mesh_dim_names=("replicate", "shard"))
    ddp, _ = hooked("hierarchical", mesh=mesh)
    torch.testing.assert_close(gradients_of(ddp), gradients_of(hooked()[0]))
    assert mesh["shard"].mesh.tolist() == groups[dist.get_rank() % 2]
    assert two_levels("cpu", by="links").mesh.tolist() == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="by 'host' or by 'links'"):
        two_levels("cpu", by="socket")


def check_meshes():
    mesh = build_mesh("cpu", {"replicate": -1, "tensor": 2}, host=host())
    assert mesh.mesh_dim_names == ("replicate", "tensor")
    assert mesh["tensor"].size() == 2
    with pytest.raises(ValueError, match="would reach over hosts"):
        build_mesh("cpu", {"tensor": 4}, host=host())
    with pytest.raises(ValueError, match="must come last"):
        build_mesh("cpu", {"tensor": 2, "shard": 2}, host=host())
    for sizes in ({}, {"a": 3}, {"a": -1, "b": -1}, {"a": 0, "b": 4}, {"a": 3, "b": -1}):
        with pytest.raises(ValueError, match="mesh"):
            build_mesh("cpu", sizes)


def check_hierarchical_equals_flat():
    mesh = two_levels("cpu", host=host())
    expected = gradients_of(hooked()[0])
    for dtype, bound in [(None, 1e-6), (torch.bfloat16, 1e-2)]:
        ddp, hook = hooked("hierarchical", mesh=mesh, dtype=dtype)
        found = gradients_of(ddp)
        assert (found - expected).norm() <= bound * expected.norm(), dtype
        assert same_on_all_ranks(found)
        assert abs(hook.raw_bytes / hook.sent_bytes / (2 if dtype is None else 4) - 1) < 0.01, "between hosts"
    one_host, _ = hooked("hierarchical", mesh=two_levels("cpu"))
    torch.testing.assert_close(gradients_of(one_host), expected)
    odd = network(width=63)
    ddp, _ = hooked("hierarchical", odd, mesh=mesh)
    torch.testing.assert_close(gradients_of(ddp), gradients_of(DistributedDataParallel(network(width=63))))


def check_hierarchical_refuses_other_ranks():
    with pytest.raises(ValueError, match="of 1 dimensions"):
        comm_hook("hierarchical", mesh=build_mesh("cpu", {"all": 4}))
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    ddp = DistributedDataParallel(network(), process_group=halves[dist.get_rank() // 2])
    with pytest.raises(ValueError, match="the model has others"):
        install(ddp, "hierarchical", mesh=two_levels("cpu", host=host()))


def check_compression_on_four_ranks():
    expected = trained(hooked()[0], 40)
    for name, options, bound in [
        ("int8", {}, 0.005),
        ("power_sgd", {"rank": 2, "warm_up": 5}, 0.1),
        ("bf16", {}, 0.005),
    ]:
        found = trained(hooked(name, **options)[0], 40)
        assert abs(found / expected - 1) < bound, (name, expected, found)


def check_hybrid_sharding_equals_one_process_and_holds_what_was_predicted():
    alone = network()
    model = fully_sharded(copy.deepcopy(alone), two_levels("cpu", host=host()), blocks=nn.Linear)
    estimate = estimate_memory(alone, "hsdp", num_ranks=2, optimizer=torch.optim.AdamW, blocks=nn.Linear)
    optimizer = adam(model.parameters())
    compared(model, optimizer, alone).check(2e-4)
    assert held(model.parameters(), optimizer) == [estimate.parameters, estimate.optimizer_state]


def check_tensor_and_data_parallel_together_equal_one_process():
    alone = Deep()
    model = copy.deepcopy(alone)
    mesh = build_mesh("cpu", {"shard": 2, "tensor": 2}, host=host())
    sample = (torch.ones(3, 16) + mesh["shard"].get_local_rank(),)
    with pytest.raises(ValueError, match="4 ranks in groups of 2 take 2 different batches at once, not 1"):
        tensor_parallel(model, mesh["tensor"], sample=sample, data_ranks=1)
    tensor_parallel(model, mesh["tensor"], sample=sample, data_ranks=2)
    model = fully_sharded(model, mesh["shard"])
    place = mesh["shard"].get_local_rank()
    compared(model, adam(model.parameters()), alone, share=lambda b: tuple(t[place::2] for t in b)).check(2e-4)


def check_a_pipeline_of_four():
    alone = deep()
    pipeline = Pipeline(list(copy.deepcopy(alone)), criterion, num_micro_batches=4, costs=[4, 1, 1, 1, 1])
    assert pipeline.cuts == [0, 1, 2, 3, 5]
    optimizer = adam(pipeline.parameters())

    def train_step(batch):
        loss = pipeline.step(*batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compare_with_one_process(pipeline, alone, train_step, stepping(alone, adam(alone.parameters())), alike()).check(
        2e-4
    )

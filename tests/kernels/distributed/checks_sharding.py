"""Sharded models against one process, on two ranks, and the memory that was predicted."""

import copy

import pytest
import torch
import torch.distributed as dist
from setting import batches, network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.fully_sharded import fully_sharded
from diagnose.kernels.distributed.memory_estimate import estimate_memory
from diagnose.kernels.distributed.mesh import build_mesh
from diagnose.kernels.distributed.pipelined import Pipeline
from diagnose.kernels.distributed.single_process_parity import compare_with_one_process, parameter_distances
from diagnose.kernels.distributed.zero import whole_state, zero_optimizer

criterion = nn.functional.cross_entropy


def stepping(model, optimizer):
    def train_step(batch):
        loss = criterion(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def alike(num=6):
    return batches(num, 16, rank=0)


def mine(batch):
    return tuple(t[dist.get_rank() :: dist.get_world_size()] for t in batch)


def compared(parallel, optimizer, alone, *, share=mine, num=6):
    steps = stepping(parallel, optimizer), stepping(alone, adam(alone.parameters()))
    return compare_with_one_process(parallel, alone, *steps, alike(num), share=share)


def held(parameters, optimizer):
    """Return the bytes of parameters and of optimizer state in this rank, and their maxima over ranks."""
    local = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
    state = [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor) and v.dim()]
    state = [v.to_local() if hasattr(v, "to_local") else v for v in state]
    sizes = torch.tensor([sum(4 * t.numel() for t in local), sum(4 * t.numel() for t in state)])
    dist.all_reduce(sizes, dist.ReduceOp.MAX)
    return sizes.tolist()


def check_fsdp_equals_one_process_and_holds_what_was_predicted():
    for reshard in (True, False):
        alone = network(width=63)
        model = copy.deepcopy(alone)
        estimate = estimate_memory(model, "fsdp", num_ranks=2, optimizer=torch.optim.AdamW, blocks=nn.Linear)
        model = fully_sharded(model, build_mesh("cpu", {"shard": 2}), blocks=nn.Linear, reshard=reshard)
        optimizer = adam(model.parameters())
        comparison = compared(model, optimizer, alone)
        comparison.check(2e-4)
        assert len(comparison.distances) == 6
        assert held(model.parameters(), optimizer) == [estimate.parameters, estimate.optimizer_state]


def check_fsdp_in_low_precision_is_near_and_offload_is_equal():
    alone = network()
    model = fully_sharded(
        copy.deepcopy(alone), build_mesh("cpu", {"shard": 2}), blocks=nn.Linear, param_dtype=torch.bfloat16
    )
    assert model(alike(1)[0][0]).dtype is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in model.parameters())
    x, y = mine(alike(1)[0])
    criterion(model(x).float(), y).backward()
    gradients = [p.grad.to_local() for p in model.parameters()]
    assert any((g != g.bfloat16().float()).any() for g in gradients), "summed over the ranks in float32"
    model.zero_grad()
    comparison = compared(model, adam(model.parameters()), alone)
    assert 1e-5 < comparison.worst < 0.2, comparison.worst
    with pytest.raises(ArithmeticError, match=r"one process|on one"):
        comparison.check(1e-6)
    offloaded = fully_sharded(copy.deepcopy(alone), build_mesh("cpu", {"shard": 2}), offload=True)
    compared(offloaded, adam(offloaded.parameters()), copy.deepcopy(alone)).check(2e-4)


def check_fsdp_refuses():
    mesh = build_mesh("cpu", {"shard": 2})
    with pytest.raises(TypeError, match=r"pass ddp.module"):
        fully_sharded(DistributedDataParallel(network()), mesh)
    with pytest.raises(ValueError, match="one or two dimensions"):
        fully_sharded(network(), build_mesh("cpu", {"a": 1, "b": 1, "c": 2}))
    model = fully_sharded(network(), mesh)
    with pytest.raises(ValueError, match="sharded already"):
        fully_sharded(model, mesh)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"share 0.weight"):
        fully_sharded(tied, mesh)
    with pytest.raises(ValueError, match="are sharded"):
        zero_optimizer(torch.optim.SGD, model.parameters(), lr=0.1)


def check_zero_equals_one_process_and_holds_what_was_predicted():
    alone = network()
    ddp = DistributedDataParallel(copy.deepcopy(alone))
    estimate = estimate_memory(ddp.module, "zero", num_ranks=2, optimizer=torch.optim.AdamW)
    optimizer = zero_optimizer(torch.optim.AdamW, ddp.parameters(), lr=1e-2)
    compared(ddp, optimizer, alone).check(2e-4)
    assert held(ddp.parameters(), optimizer.optim) == [estimate.parameters, estimate.optimizer_state]
    assert (whole_state(optimizer, to=1) is None) == (dist.get_rank() != 1)
    state = whole_state(optimizer)
    assert (state is None) == (dist.get_rank() != 0)
    if state is not None:
        plain = adam(ddp.module.parameters())
        plain.load_state_dict(state)
        assert sum(v.numel() for entry in plain.state.values() for v in entry.values() if v.dim()) * 4 == (
            estimate.parameters * 2
        )
    with pytest.raises(TypeError, match="not AdamW"):
        whole_state(adam(ddp.parameters()))
    with pytest.raises(ValueError, match="1 parameters cannot be dealt out to 2"):
        zero_optimizer(torch.optim.SGD, [nn.Parameter(torch.zeros(3))], lr=0.1)


def deep():
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)), nn.Linear(16, 4))


def check_pipelines_equal_one_process():
    for schedule in ("gpipe", "1f1b", "interleaved"):
        alone = deep()
        pipeline = Pipeline(list(copy.deepcopy(alone)), criterion, num_micro_batches=4, schedule=schedule)
        optimizer = adam(pipeline.parameters())

        def train_step(batch, pipeline=pipeline, optimizer=optimizer):
            loss = pipeline.step(*batch)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        compare_with_one_process(pipeline, alone, train_step, stepping(alone, adam(alone.parameters())), alike()).check(
            2e-4
        )
        if schedule != "interleaved":
            estimate = estimate_memory(alone, "pipeline", num_ranks=2, optimizer=torch.optim.AdamW)
            assert held(pipeline.parameters(), optimizer) == [estimate.parameters, estimate.optimizer_state]
        assert pipeline.waiting_share == pytest.approx(1 / 9 if schedule == "interleaved" else 1 / 5)


def check_a_pipeline_clips_by_the_norm_over_all_stages():
    for schedule in ("1f1b", "interleaved"):
        torch.manual_seed(0)
        alone = deep()
        pipeline = Pipeline(list(copy.deepcopy(alone)), criterion, num_micro_batches=4, schedule=schedule)
        optimizer, reference = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (pipeline, alone))
        norms = []
        for x, y in alike(3):
            pipeline.step(x, y)
            norms.append(pipeline.clip_gradients(0.05))
            optimizer.step()
            optimizer.zero_grad()
            reference.zero_grad()
            criterion(alone(x), y).backward()
            torch.testing.assert_close(norms[-1], nn.utils.clip_grad_norm_(alone.parameters(), 0.05))
            reference.step()
        assert all(norm > 0.05 for norm in norms)
        for name, p in pipeline.named_parameters():
            torch.testing.assert_close(p, dict(alone.named_parameters())[name])


def check_a_pipeline_refuses_batches_that_differ():
    pipeline = Pipeline(list(network()), criterion, num_micro_batches=2)
    (x, y), *_ = batches(1, 8)
    with pytest.raises(ValueError, match="the targets are not those of the inputs"):
        pipeline.step(x, y)
    assert all(p.grad is None for p in pipeline.parameters())


def with_norms():
    """Return layers of which those of the first rank have buffers and dropout."""
    torch.manual_seed(1)
    block = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Tanh()]
    return nn.Sequential(nn.Sequential(*block), *(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))


def check_a_pipeline_evaluates_and_keeps_its_state():
    x, y = torch.randn(14, 16, generator=torch.Generator().manual_seed(2)), torch.zeros(14, 16)
    for schedule in ("1f1b", "interleaved"):
        alone = with_norms()
        parts = list(copy.deepcopy(alone))
        pipeline = Pipeline(parts, nn.functional.mse_loss, num_micro_batches=4, schedule=schedule)
        pipeline.step(x[:12], y[:12])
        for p in pipeline.parameters():
            p.grad = None
        state = pipeline.whole_state_dict()
        assert (state is None) == (dist.get_rank() == 1)
        everyones = [state]
        dist.broadcast_object_list(everyones)
        alone.load_state_dict(everyones[0])
        assert list(everyones[0]) == list(alone.state_dict())
        assert alone[0][1].num_batches_tracked == 4, "buffers are of the state"
        alone.eval()
        outputs, loss = pipeline.predict(x), pipeline.evaluate(x, y)
        assert (outputs is None) == (loss is None) == (not pipeline.is_last)
        if pipeline.is_last:
            torch.testing.assert_close(outputs, alone(x))
            torch.testing.assert_close(loss, nn.functional.mse_loss(alone(x), y))
        assert all(stage.training for stage in pipeline.stages.values())
        assert all(p.grad is None for p in pipeline.parameters())
        pipeline.step(x[:12], y[:12])  # training goes on

        fresh = Pipeline(list(with_norms()), nn.functional.mse_loss, num_micro_batches=2)
        fresh.load_state_dict(everyones[0])
        fresh.stages[dist.get_rank()].eval()
        again = fresh.predict(x)
        assert not fresh.stages[dist.get_rank()].training, "it was evaluating before"
        if fresh.is_last:
            torch.testing.assert_close(again, alone(x))
        fresh.load_state_dict(fresh.state_dict())
        mine = next(iter(fresh.state_dict()))
        for wrong, text in [
            ({k: v for k, v in everyones[0].items() if k != mine}, f"lacks \\['{mine}'\\]"),
            (everyones[0] | {"9.weight": x}, "has \\['9.weight'\\] that they lack"),
            (everyones[0] | {mine: x}, f"'{mine}' has another shape"),
        ]:
            with pytest.raises(ValueError, match=text):
                fresh.load_state_dict(wrong)
    with pytest.raises(ValueError, match="empty batch"):
        pipeline.predict(x[:0])


def check_pipelines_refuse():
    layers = list(network())
    for arguments, text in [
        ({"num_micro_batches": 0}, "num_micro_batches >= 1"),
        ({"num_micro_batches": 2, "schedule": "2f2b"}, "one of gpipe, 1f1b"),
        ({"num_micro_batches": 3, "schedule": "interleaved"}, "multiple of 2"),
    ]:
        with pytest.raises(ValueError, match=text):
            Pipeline(layers, criterion, **arguments)
    with pytest.raises(ValueError, match="cannot be cut into 2 stages"):
        Pipeline(layers[:1], criterion, num_micro_batches=2)
    with pytest.raises(ValueError, match="Stage 1 of 2 would hold no parameter"):
        Pipeline([nn.Linear(2, 2), nn.Tanh()], criterion, num_micro_batches=2)
    with pytest.raises(ValueError, match="batch of 7"):
        Pipeline(layers, criterion, num_micro_batches=2).step(torch.zeros(7, 16), torch.zeros(7))


def check_the_comparison_itself_can_fail():
    alone = network()
    ddp = DistributedDataParallel(copy.deepcopy(alone))
    wrong = stepping(ddp, torch.optim.AdamW(ddp.parameters(), lr=1.1e-2))
    right = stepping(alone, adam(alone.parameters()))
    comparison = compare_with_one_process(ddp, alone, wrong, right, alike(), share=mine)
    with pytest.raises(ArithmeticError, match="In step"):
        comparison.check(1e-4)
    once = compare_with_one_process(ddp, alone, wrong, right, alike(1), share=lambda batch: batch)
    assert once.worst > 1e-4
    with pytest.raises(ValueError, match="no batch"):
        compare_with_one_process(ddp, alone, wrong, right, [])
    with pytest.raises(ValueError, match="different batches"):
        compare_with_one_process(ddp, alone, wrong, right, batches(1))
    with pytest.raises(ValueError, match="no parameter 'x'"):
        parameter_distances([("x", torch.zeros(1))], alone)
    with pytest.raises(ValueError, match=r"No rank holds 0\.bias"):
        parameter_distances([("0.weight", alone[0].weight)], alone)
    with pytest.raises(ValueError, match="No rank's parallel_step"):
        compare_with_one_process(ddp, alone, lambda _: None, right, alike(1))

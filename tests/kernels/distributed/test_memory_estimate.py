from itertools import pairwise

import pytest
import torch
from torch import nn

from diagnose.kernels.distributed._blocks import find_blocks, shared_across
from diagnose.kernels.distributed.memory_estimate import activation_bytes, estimate_memory, state_per_byte
from diagnose.kernels.distributed.pipelined import balanced


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4, bias=False))


def test_what_optimizers_keep():
    assert state_per_byte(torch.optim.SGD, lr=0.1) == 0
    assert state_per_byte(torch.optim.SGD, lr=0.1, momentum=0.9) == 1
    assert state_per_byte(torch.optim.AdamW) == 2
    assert state_per_byte(torch.optim.AdamW, amsgrad=True) == 3
    with pytest.raises(TypeError, match="speed"):
        state_per_byte(torch.optim.SGD, speed=1)


def test_numbers_that_add_up():
    ddp = estimate_memory(model(), "ddp", num_ranks=4, optimizer=torch.optim.AdamW)
    whole = 4 * (8 * 16 + 16 + 16 + 16 + 16 * 4)
    assert (ddp.parameters, ddp.gradients, ddp.optimizer_state) == (whole, whole, 2 * whole)
    assert ddp.buffers == 4 * 16 * 2 + 8
    assert ddp.total == 4 * whole + ddp.buffers
    zero = estimate_memory(model(), "zero", num_ranks=2, optimizer=torch.optim.AdamW, activations=7)
    assert zero.optimizer_state == 2 * 4 * 128, "the largest parameter alone, all others on the other rank"
    assert zero.activations == 7
    fsdp = estimate_memory(model(), "fsdp", num_ranks=3, optimizer=torch.optim.AdamW)
    assert fsdp.parameters == 4 * (6 * 8 + 6 + 6 + 6 + 2 * 16), "the first rank's rows are rounded up"
    assert fsdp.optimizer_state == 2 * fsdp.parameters
    assert fsdp.transient == 3 * whole, "no blocks: all parameters, gradients, and those to send"
    assert estimate_memory(model(), "fsdp", num_ranks=1, optimizer=torch.optim.AdamW).transient == 0


def test_blocks_and_low_precision_make_less_of_it_there_at_once():
    deep = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8)))
    full = estimate_memory(deep, "fsdp", num_ranks=2, optimizer=torch.optim.SGD, lr=0.1)
    half = estimate_memory(deep, "fsdp", num_ranks=2, optimizer=torch.optim.SGD, lr=0.1, param_dtype=torch.bfloat16)
    assert full.transient == 5 * 32 * 32 * 4, "one block's parameters, the next one's twice, one's gradients twice"
    assert half.transient == full.transient / 2


def test_split_layers_and_stages():
    split = estimate_memory(
        model(), "tensor", num_ranks=2, optimizer=torch.optim.AdamW, plan={"0": "column", "2": "row"}
    )
    assert split.parameters == 4 * (8 * 8 + 8 + 16 + 16 + 8 * 4)
    stage = estimate_memory(model(), "pipeline", num_ranks=3, optimizer=torch.optim.SGD, lr=0.1)
    assert (stage.parameters, stage.gradients, stage.buffers) == (4 * (8 * 16 + 16), 4 * (8 * 16 + 16), 0)
    with pytest.raises(ValueError, match="3 layers cannot be cut into 4"):
        estimate_memory(model(), "pipeline", num_ranks=4, optimizer=torch.optim.AdamW)


def test_frozen_parameters_need_no_gradients():
    part = model()
    part[0].requires_grad_(False)
    found = estimate_memory(part, "ddp", num_ranks=2, optimizer=torch.optim.AdamW)
    assert found.parameters - found.gradients == 4 * (8 * 16 + 16)


def test_models_too_large_for_any_memory():
    with torch.device("meta"):
        huge = nn.Sequential(*(nn.Linear(65536, 65536, bias=False) for _ in range(64)))
    found = estimate_memory(huge, "hsdp", num_ranks=64, optimizer=torch.optim.AdamW, param_dtype=torch.bfloat16)
    assert found.parameters == 65536**2 * 4
    assert str(found).startswith("112 GB a rank: parameters 17.2, gradients 17.2, optimizer state 34.4")


@pytest.mark.parametrize(("strategy", "ranks"), [("fspd", 2), ("ddp", 0)])
def test_wrong_arguments(strategy, ranks):
    with pytest.raises(ValueError, match="one of ddp, zero, fsdp, hsdp, tensor, pipeline"):
        estimate_memory(model(), strategy, num_ranks=ranks, optimizer=torch.optim.SGD)


def test_activations_count_each_memory_once():
    layer, x = nn.Linear(64, 32, bias=False), torch.zeros(10, 64, requires_grad=True)
    parameters = list(layer.parameters())
    assert activation_bytes(lambda: layer(x), without=[x, *parameters]) == 0
    assert activation_bytes(lambda: layer(x).relu(), without=[x, *parameters]) == 4 * 10 * 32
    assert activation_bytes(lambda: layer(x)) == 4 * (10 * 64 + 64 * 32)


def test_blocks():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, 4)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
            self.head = nn.Linear(4, 8, bias=False)

    two = Two()
    assert find_blocks(two) == list(two.blocks)
    assert len(find_blocks(two, nn.Linear)) == 4
    assert find_blocks(two, lambda name, _: name == "head") == [two.head]
    assert find_blocks(two, [two.head]) == [two.head]
    assert find_blocks(two, [two.blocks[0], two.blocks[0][0]]) == [two.blocks[0]], "none inside another"
    assert find_blocks(nn.Linear(1, 1)) == []
    for wrong in (nn.Conv2d, lambda *_: False, [nn.Linear(1, 1)]):
        with pytest.raises(ValueError, match=r"as described by|not part of"):
            find_blocks(two, wrong)
    assert shared_across(two, find_blocks(two)) == []
    two.blocks[1][0].weight = two.blocks[0][0].weight
    assert shared_across(two, find_blocks(two)) == ["blocks.0.0.weight"]
    two.head.weight = two.embedding.weight
    assert shared_across(two, [two.head]) == ["embedding.weight"]


@pytest.mark.parametrize(
    ("costs", "parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [0, 2, 4]),
        ([5, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 1, 5], 2, [0, 3, 4]),
        ([1, 9, 1], 3, [0, 1, 2, 3]),
        ([3], 1, [0, 1]),
        ([0, 0, 4, 0, 4], 2, [0, 3, 5]),
    ],
)
def test_layers_are_cut_where_the_costliest_part_is_least(costs, parts, expected):
    cuts = balanced(costs, parts)
    worst = max(sum(costs[a:b]) for a, b in pairwise(cuts))
    assert worst == max(sum(costs[a:b]) for a, b in pairwise(expected))
    assert len(cuts) == parts + 1
    assert all(a < b for a, b in pairwise(cuts))


def test_more_stages_than_layers():
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3"):
        balanced([1, 1], 3)

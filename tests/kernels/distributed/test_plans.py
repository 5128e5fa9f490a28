"""Which layers the common plan splits: whole pairs only, since half of one gives its neighbour a part of a tensor."""

import pytest
from torch import nn

from diagnose.kernels.distributed._plans import COMMON_PLAN, planned


def block(**layers):
    model = nn.Module()
    model.block = nn.ModuleDict({name: nn.Linear(*sizes) for name, sizes in layers.items()})
    return model


ATTENTION = {"q_proj": (8, 8), "k_proj": (8, 4), "v_proj": (8, 4)}


@pytest.mark.parametrize(
    ("layers", "columns", "rows"),
    [
        ({"gate_proj": (8, 12), "up_proj": (8, 12), "down_proj": (12, 8)}, "gate_proj up_proj", "down_proj"),
        ({"up_proj": (8, 12), "down_proj": (12, 8)}, "up_proj", "down_proj"),
        ({"w1": (8, 12), "w3": (8, 12), "w2": (12, 8)}, "w1 w3", "w2"),
        ({"c_fc": (8, 32), "c_proj": (32, 8)}, "c_fc", "c_proj"),
        ({**ATTENTION, "o_proj": (8, 8)}, "q_proj k_proj v_proj", "o_proj"),
        ({**ATTENTION, "out_proj": (8, 8)}, "q_proj k_proj v_proj", "out_proj"),
        ({"c_fc": (8, 32)}, "", ""),
        ({"fc1": (8, 32), "act": (32, 32)}, "", ""),
        ({"fc2": (32, 8)}, "", ""),
        ({"c_attn": (8, 24), "c_proj": (8, 8)}, "", ""),
        ({"q_proj": (8, 8), "o_proj": (8, 8)}, "", ""),
        (ATTENTION, "", ""),
        ({"fc1": (8, 64), "fc2": (32, 8)}, "", ""),  # halved in between
        ({"gate_proj": (8, 12), "down_proj": (12, 8)}, "", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_common_plan(layers, columns, rows):
    expected = {f"block.{name}": "column" for name in columns.split()} | {
        f"block.{name}": "row" for name in rows.split()
    }
    assert planned(block(**layers), COMMON_PLAN) == expected


def test_torchs_own_attention_stays_whole():
    layer = nn.TransformerDecoderLayer(8, 2, 16)
    assert planned(nn.ModuleList([layer]), COMMON_PLAN) == {"0.linear1": "column", "0.linear2": "row"}
    cross = nn.ModuleList([nn.MultiheadAttention(8, 2, kdim=4, vdim=4)])
    assert planned(cross, COMMON_PLAN) == {}


def test_a_plan_of_ones_own_is_taken_as_it_is():
    assert planned(block(fc1=(8, 32)), {r"block\.fc1": "column"}) == {"block.fc1": "column"}

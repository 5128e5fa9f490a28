"""A loop whose weights are parametrized is no finding: that they are computed in each turn is."""

import pytest

from diagnose.analyzers import computed_again, recurrence
from tests.analyzers.programs import recorded

CELL = """
import torch
from torch import nn

torch.manual_seed(0)
inner, outer = nn.Linear(16, 48), nn.Linear(16, 48)
{wrapped}

def step():
    x, h = torch.randn(24, 8, 16), torch.zeros(8, 16)
    for now in x:
        i_r, i_z, i_n = inner(now).chunk(3, 1)
        h_r, h_z, h_n = outer(h).chunk(3, 1)
        reset, update = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
        new = torch.tanh(i_n + reset * h_n)
        h = new + update * (h - new)
    h.sum().backward()
"""


@pytest.mark.parametrize(
    ("wrapped", "forms"),
    [("", ["GRU"]), ("outer = nn.utils.parametrizations.weight_norm(outer)", [])],
    ids=["plain", "normalised"],
)
def test_a_layer_of_torch_takes_the_place_of_plain_weights_only(wrapped, forms, tmp_path):
    flow = recorded(CELL.format(wrapped=wrapped), tmp_path)
    assert [one.facts["form"] for one in recurrence._RULE.detect(flow)] == forms
    assert [one.facts["is_parametrized"] for one in computed_again.detect(flow)] == [True] * (not forms)

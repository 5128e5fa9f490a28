"""dead-work: averages of weights that never change, in programs and the same with them left out."""

import pytest
import torch

from diagnose.analyzers import dead_work
from diagnose.changes.edits.statement_edits import rewritten
from tests.analyzers.programs import names_of, recorded

IN_PLACE = """
import copy
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(500, 8), nn.Linear(8, 4))
model[0].requires_grad_(False)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)

@torch.no_grad()
def follow(decay=0.5):
    for kept, now in zip(average.parameters(), model.parameters()):
        kept.mul_(decay).add_(now, alpha=1 - decay)

def step():
    loss = model(torch.randint(500, (16,))).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow()
    return loss.item()

step()
"""
BY_LERP = IN_PLACE.replace(
    "kept, now in zip(average.parameters(), model.parameters())",
    "now, kept in zip(model.parameters(), average.parameters())",
).replace("kept.mul_(decay).add_(now, alpha=1 - decay)", "kept.data.lerp_(now.data, 1 - decay)")


def parts(text, tmp_path):
    found = dead_work.detect(recorded(text, tmp_path))
    return [each for each in found if each.facts["kind"] == "unchanged"]


@pytest.mark.parametrize("text", [IN_PLACE, BY_LERP])
def test_weights_that_never_change_are_left_out_and_the_averages_are_the_same(text, tmp_path):
    (part,) = parts(text, tmp_path)
    assert "averages 1 parameter that no step changes, of 0." in part.text
    now = rewritten(text, part.edits)
    results = []
    for each in (text, now):
        torch.manual_seed(3)
        names = names_of(each)
        names["step"]()
        results.append([*names["average"].parameters()])
    torch.testing.assert_close(*results)
    assert parts(now, tmp_path) == []


def test_the_average_of_a_model_that_trains_as_a_whole_is_needed(tmp_path):
    text = IN_PLACE.replace("model[0].requires_grad_(False)\n", "").replace(
        "model[1].parameters()", "model.parameters()"
    )
    assert parts(text, tmp_path) == []


def test_a_step_without_an_update_says_nothing_of_the_weights(tmp_path):
    """As with gradients that are accumulated: no weight changes then."""
    assert parts(IN_PLACE.replace("    optimizer.step()\n", ""), tmp_path) == []

"""What programs compute again in the turns of a loop, and the same programs with their result kept."""

import pytest
import torch

from diagnose.analyzers import computed_again
from diagnose.changes.edits.statement_edits import rewritten
from tests.analyzers.programs import names_of, recorded

# A module computes the same of what does not change, beside what each turn changes.
KEYS_IN_DECODER = """
import torch
from torch import nn

class Scorer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.of_state = nn.Linear(width, width)
        self.of_memory = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, state, memory: torch.Tensor):
        mixed = self.of_state(state)[:, None] * self.of_memory(memory)
        return mixed.softmax(1).mul(memory).sum(1)

class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scorer = Scorer(width)
        self.cell = nn.GRUCell(width, width)

    def forward(self, state, memory):
        for _ in range(5):
            context = self.scorer(state, memory)
            state = self.cell(context, state)
        return state

torch.manual_seed(0)
model = Decoder(16)
others = model.scorer(torch.rand(2, 16), torch.rand(2, 8, 16))

def step():
    loss = model(torch.rand(2, 16), torch.rand(2, 8, 16)).sum()
    loss.backward()
    return loss.item()
"""
KEYWORDS = """
import torch
from torch import nn

class Fuse(nn.Module):
    def __init__(self):
        super().__init__()
        self.scene_proj = nn.Linear(32, 32, bias=False)

    def forward(self, item, scene=None, scale=1.0):
        return torch.relu(item * scale + self.scene_proj(scene)).sum()

class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.fuse = Fuse()

    def forward(self, items, scene):
        total = 0.0
        for item in items:
            total = total + self.fuse(item, scene=scene)
        return total

torch.manual_seed(0)
model = Ranker()

def step():
    loss = model(torch.rand(4, 32), torch.rand(64, 32))
    loss.backward()
    return loss.item()
"""


def parts(text, tmp_path):
    return list(computed_again.detect(recorded(text, tmp_path)))


@pytest.mark.parametrize("text", [KEYS_IN_DECODER, KEYWORDS])
def test_the_call_of_a_module_in_each_turn_is_made_once_with_the_same_numbers(text, tmp_path):
    (part,) = (each for each in parts(text, tmp_path) if each.edits)
    now = rewritten(text, part.edits)
    results = []
    for each in (text, now):
        names = names_of(each)
        torch.manual_seed(3)
        results.append((names["step"](), [each.grad for each in names["model"].parameters()]))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1])
    assert not any(each.edits for each in parts(now, tmp_path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "state = self.cell(context, state)",
            "state = self.cell(context, state)\n            memory = memory + state[:, None]",
        ),  # other contents
        ("self.of_memory(memory)", "torch.dropout(self.of_memory(memory), 0.5, True)"),  # draws in each turn
        ("            context = self.scorer", "            memory = memory.clone()\n            context = self.scorer"),
    ],
)
def test_what_a_turn_changes_or_draws_stays_in_the_loop(old, new, tmp_path):
    assert not any(each.edits for each in parts(KEYS_IN_DECODER.replace(old, new), tmp_path))

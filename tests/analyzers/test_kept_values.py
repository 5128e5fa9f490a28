"""What each step makes again, in programs: a cache that never hits, arrays of Python, calls that stay the same."""

import pytest
import torch

from diagnose.analyzers import constant_work
from diagnose.analyzers.common.making import lines_that_make
from diagnose.changes.edits.statement_edits import rewritten
from tests.analyzers.programs import names_of, recorded

IMPORTS = "import numpy as np\nimport torch\n"
# Programs with what is made again, and a part of the line that an edit changes.
OTHER_KEY = (
    IMPORTS
    + """
tables = {}

def rotations(length, width):
    angles = np.arange(length)[:, None] / 10 ** (np.arange(width) / width)
    return np.cos(angles)

def table(x):
    name = f"{x.shape[1]}"
    if x.shape[1] not in tables:
        tables[name] = torch.from_numpy(rotations(x.shape[0], x.shape[1]))
    return tables[name]

def step():
    x = torch.rand(64, 32, dtype=torch.double)
    return (x * table(x)).sum().item()
"""
)
ASKED_BY_GET = (
    IMPORTS
    + """
class Bank:
    def __init__(self):
        self.kept = {}

    def window(self, size, kind):
        found = self.kept.get((kind, size))
        if found is None:
            found = torch.hann_window(size) ** 2
            self.kept[size, kind] = found
        return found

bank = Bank()

def step():
    return (torch.rand(8, 4096) * bank.window(4096, "hann")).sum().item()
"""
)
NEW_KEY = (
    IMPORTS
    + """
masks = {}

def mask_of(x):
    if x not in masks:
        masks[x] = torch.ones(x.shape[0], x.shape[0]).tril()
    return masks[x]

def step():
    x = torch.rand(64, 64)
    return (x * mask_of(x)).sum().item()
"""
)
HITS = (
    IMPORTS
    + """
masks = {}

def mask_of(x):
    if x.shape not in masks:
        masks[x.shape] = torch.ones(x.shape[0], x.shape[0]).tril()
    return masks[x.shape]

def step():
    x = torch.rand(64, 64)
    return (x * mask_of(x)).sum().item()

step()
"""
)
IN_FORWARD = (
    IMPORTS
    + """
class Positions(torch.nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, x):
        mask = torch.ones(self.length, self.length).tril()
        return x * mask

model = Positions(64)

def step():
    return model(torch.rand(64, 64)).sum().item()
"""
)


def parts(text, tmp_path):
    return list(constant_work.detect(recorded(text, tmp_path)))


@pytest.mark.parametrize("text", [OTHER_KEY, ASKED_BY_GET, IN_FORWARD])
def test_what_is_made_again_is_made_once_with_the_programs_own_names(text, tmp_path):
    edits = next(part.edits for part in parts(text, tmp_path) if part.edits)
    now = rewritten(text, edits)
    torch.manual_seed(3)
    first = names_of(text)["step"]()
    torch.manual_seed(3)
    again = names_of(now)["step"]
    assert again() == first
    assert parts(now, tmp_path) == []  # a second step finds it


def test_a_cache_that_is_asked_for_another_key_is_named_with_both(tmp_path):
    (part, *_) = parts(OTHER_KEY, tmp_path)
    assert part.title == "The cache tables is filled again in each step"
    assert part.text.endswith("tables is asked for x.shape[1] and filled under name.")


def test_a_key_that_is_new_each_time_is_named_and_not_edited(tmp_path):
    (part, *_) = parts(NEW_KEY, tmp_path)
    assert part.text.endswith("masks has the key x in neither step.")
    assert part.edits == ()


def test_a_cache_that_hits_is_silent(tmp_path):
    assert parts(HITS, tmp_path) == []


def test_the_lines_that_make_an_array_are_those_its_names_come_from(tmp_path):
    flow = recorded(OTHER_KEY, tmp_path)
    one = next(each for each in flow.found.constant_work if each.made_by_python)
    making = lines_that_make(flow.source.whole, (one.value_line, *one.callers))
    assert "rotations" in making.functions
    assert "step" not in making.functions
    assert making.lines == {(one.value_line.file, one.value_line.line)}

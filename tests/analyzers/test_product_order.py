"""product-order: programs that combine rows on the wrong side of a product, and the same in the other order."""

import pytest
import torch

from diagnose.analyzers import product_order
from diagnose.changes.common.prescribe import prescribe
from diagnose.changes.edits.statement_edits import rewritten
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import tables
from tests.analyzers.programs import names_of, recorded
from tests.dataflow.table import Table
from tests.dataflow.test_products import first

START = "import torch\nfrom torch import nn\n\ntorch.manual_seed(0)\nadjacency = torch.rand(256, 256)\n"
STEP = """
def step():
    loss = model(torch.rand(256, 128)).square().sum()
    loss.backward()
    return loss.item()
"""
# A dense adjacency and a layer without a bias, in one expression.
IN_ONE_LINE = (
    START
    + """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(128, 8, bias=False)

    def forward(self, x):
        return torch.relu(self.project(torch.mm(adjacency, x)) + 1)

model = Layer()
"""
    + STEP
)
# Messages of a function, and a product by its sign.
BY_FUNCTION = (
    START
    + """
source, target = torch.randint(0, 256, (2, 4096))

def neighbours(features, weights):
    found = features.index_select(0, source) * weights[:, None]
    return torch.zeros_like(features).index_add(0, target, found)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(128, 8))
        self.scale = torch.rand(4096)

    def forward(self, x):
        summed = neighbours(x + 1, weights=self.scale)
        return (summed @ self.weight).tanh()

model = Layer()
"""
    + STEP
)
# Scores that nothing makes non-linear.
THREE = (
    START
    + """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(128, 8))

    def forward(self, x):
        return adjacency @ x @ self.weight

model = Layer()
"""
    + STEP
)
# Scores of all pairs, of which nothing but a product is read.
TURNED = THREE.replace("torch.rand(128, 8)", "torch.rand(256, 8)").replace("adjacency @ x @", "x @ x.t() @")
# A layer at each position, and the mean of what it makes.
AVERAGED = (
    START
    + """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(128, 64)

    def forward(self, x):
        return self.head(x.view(4, 64, 128)).mean(1)

model = Layer()
"""
    + STEP
)


def parts(text, tmp_path):
    return list(product_order.detect(recorded(text, tmp_path)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (IN_ONE_LINE, "torch.relu(torch.mm(adjacency, self.project(x)) + 1)"),
        (BY_FUNCTION, "neighbours((x + 1) @ self.weight, weights=self.scale)"),
        (THREE, "adjacency @ (x @ self.weight)"),
        (TURNED, "x @ (x.t() @ self.weight)"),
    ],
)
def test_the_product_comes_first_in_the_programs_own_words_with_the_same_numbers(text, line, tmp_path):
    (part,) = parts(text, tmp_path)
    now = rewritten(text, part.edits)
    assert line in now
    results = []
    for each in (text, now):
        names = names_of(each)
        torch.manual_seed(3)
        results.append((names["step"](), [each.grad for each in names["model"].parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)
    assert parts(now, tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("summed @ self.weight", "summed @ self.weight + summed.mean()"),  # the wide rows are needed
        ("torch.zeros_like(features)", "torch.zeros(256, 128)"),  # a function of one width
        ("        return (summed", "        self.weight = nn.Parameter(self.weight * 2)\n        return (summed"),
    ],
)
def test_what_is_not_certain_to_be_the_same_is_not_edited(old, new, tmp_path):
    assert not any(part.edits for part in parts(BY_FUNCTION.replace(old, new), tmp_path))


def test_a_mean_of_a_layer_is_the_layer_of_the_mean(tmp_path):
    (part,) = parts(AVERAGED, tmp_path)
    assert (part.facts["kind"], part.lines[0].function) == ("summed", "forward")
    assert "makes one of 64 numbers" in part.text
    assert parts(AVERAGED.replace("self.head(x.view(4, 64, 128)).mean(1)", "self.head(x.view(4, 64, 128).mean(1))"),
                 tmp_path) == []  # fmt: skip


def test_the_cost_is_what_the_other_order_saves(recording):
    flow = Table()
    for flow.step in range(2):
        flow.read_on_host(first(flow))
    (finding,) = product_order.find(t := tables(recording, flow))
    assert finding.lost_ns == pytest.approx(200_000, abs=3000)  # of three operators of 100 µs two thirds
    assert finding.evidence[-1] == (
        "Line 2 of train.py combines rows of 96 numbers; the product at line 5 of train.py makes 32."
    )
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert (change.id, change.before) == ("reorder-product", "")

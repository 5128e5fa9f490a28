"""costly-form: programs in a costly form, the same in another one, and programs that look alike."""

import pytest
import torch

from diagnose.analyzers import costly_form
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import tables
from tests.analyzers.programs import names_of, recorded
from tests.dataflow.table import Table

START = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(64, 64) / 8)
matrix = torch.eye(64) + 0.1 * torch.rand(64, 64)
factors = torch.linalg.lu_factor(matrix)
bell = torch.exp(-torch.linspace(-2, 2, 13) ** 2)
kernel = torch.outer(bell, bell).repeat(2, 1, 1, 1)
layer = nn.Linear(64, 64)
optimizer = torch.optim.SGD([weight, *layer.parameters()], lr=1e-3)

seeds = iter(range(9))

def step():
    torch.manual_seed(next(seeds))
    x = torch.rand(64, 64) @ weight
    y = {}
    y.sum().backward()
    optimizer.step()
    return y.sum().item()
"""
# Kind, the costly form, and another one with the same result.
FORMS = {
    "values": ("torch.linalg.svd(x.detach())[1] * weight[0]", "torch.linalg.svdvals(x.detach()) * weight[0]"),
    "eigenvalues": ("torch.linalg.eigh(x.detach() @ x.detach().T)[0] * weight[0]",
                    "torch.linalg.eigvalsh(x.detach() @ x.detach().T) * weight[0]"),
    "full factors": ("torch.linalg.qr(x.detach()[:, :8], mode='complete')[0][:, :8] * weight[:, :8]",
                     "torch.linalg.qr(x.detach()[:, :8])[0] * weight[:, :8]"),
    "same matrix": ("torch.linalg.solve(matrix, x[:, :4])", "torch.linalg.lu_solve(*factors, x[:, :4])"),
    "triangular": ("torch.linalg.solve((x @ x.T + matrix).tril(), x[:, :4])",
                   "torch.linalg.solve_triangular((x @ x.T + matrix).tril(), x[:, :4], upper=False)"),
    "known factor": ("(lambda f: torch.linalg.cholesky(f @ f.T))((1e-3 * x + matrix).tril())",
                     "(1e-3 * x + matrix).tril()"),
    "normalised": ("F.log_softmax(F.log_softmax(x, -1), -1) * weight", "F.log_softmax(x, -1) * weight"),
    "inverse": ("torch.linalg.inv(x @ x.T + 9 * matrix) @ x[:, :4]",
                "torch.linalg.solve(x @ x.T + 9 * matrix, x[:, :4])"),
    "separable": ("F.conv2d(x.view(2, 2, 32, 32), kernel, groups=2)",
                  "F.conv2d(F.conv2d(x.view(4, 1, 32, 32), bell.view(1, 1, 1, -1)), bell.view(1, 1, -1, 1))"),
    "pairs": ("(x.unsqueeze(-1) - x.unsqueeze(-2)).abs().sum((-1, -2))",
              "2 * (x.sort(-1).values * (2 * torch.arange(1, 65) - 65)).sum(-1)"),
    "decay": ("layer(x).mean() + sum(p.pow(2).sum() for p in (weight, *layer.parameters()))", ""),
    "ranks": ("x[0][x[1].argsort().argsort()]", "x[0][torch.empty(64, dtype=torch.int64)"
              ".scatter_(0, x[1].argsort(), torch.arange(64))]"),
    "few shuffled": ("x[torch.randperm(2000)[:20] % 64]", ""),
    "rows": ("x[:3] * len(torch.unique((8 * x).long()[:, :3], dim=0))", ""),
    "diagonal": ("(x @ weight).diagonal()", "(x * weight.T).sum(-1)"),
    "count": ("F.one_hot((8 * x[0]).long().clamp(0, 9), 10).sum(0) * x[0, :10]",
              "torch.bincount((8 * x[0]).long().clamp(0, 9), minlength=10) * x[0, :10]"),
    "long filter": ("F.conv1d(F.pad(x.view(4, 1, 1024), (700, 0)), x.view(4, 1, 1024)[:1, :, :701])", ""),
}  # fmt: skip
# What looks alike, and needs all that is computed.
ALIKE = {
    "vectors are read": "torch.linalg.svd(x[:, :8], full_matrices=False)[0]",
    "the square factor is read": "torch.linalg.svd(x[:, :8].detach())[0] @ weight",
    "eigenvectors are read": "torch.linalg.eigh(x @ x.T)[1]",
    "another matrix each time": "torch.linalg.solve(x @ x.T + matrix, x[:, :4])",
    "an inverse of which all is read": "torch.linalg.inv(x @ x.T + 9 * matrix)",
    "a small filter": "F.conv2d(x.view(2, 2, 32, 32), kernel[:, :, 4:9, 4:9].contiguous(), groups=2)",
    "no outer product": "F.conv2d(x.view(2, 2, 32, 32), kernel + torch.eye(13), groups=2)",
    "pairs that are read": "(x.unsqueeze(-1) - x.unsqueeze(-2)).abs().softmax(-1).sum((-1, -2))",
    "two sets": "(x.unsqueeze(-1) - x.flip(-1).unsqueeze(-2)).abs().sum((-1, -2))",
    "far from a start": "layer(x).mean() + sum((p - 1).pow(2).sum() for p in (weight, *layer.parameters()))",
    "half of the indices": "x[torch.randperm(2000)[:1000] % 64]",
    "all similarities": "(x @ weight).logsumexp(-1) - (x @ weight).diagonal()",
    "one-hot rows that are read": "F.one_hot((8 * x[0]).long().clamp(0, 9), 10).float() @ x[:10]",
    "another dimension": "F.log_softmax(F.log_softmax(x, 0), 1) * weight",
    "a product that is no factor's": "torch.linalg.cholesky(x @ x.T + matrix)",
    "a short filter": "F.conv1d(x.view(4, 1, 1024), x.view(4, 1, 1024)[:1, :, :31])",
}


def kinds(expression, tmp_path):
    return {one.facts["kind"] for one in costly_form.detect(recorded(START.format(expression), tmp_path))}


@pytest.mark.parametrize("kind", FORMS)
def test_a_costly_form_is_named_and_another_one_is_not(kind, tmp_path):
    costly, other = FORMS[kind]
    assert kind in kinds(costly, tmp_path)
    if other:
        assert kinds(other, tmp_path) == set()
        first, second = (names_of(START.format(each))["step"]() for each in (costly, other))
        assert first == pytest.approx(second, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("case", ALIKE)
def test_what_needs_all_that_is_computed_is_left_alone(case, tmp_path):
    assert kinds(ALIKE[case], tmp_path) == set()


def test_every_kind_has_a_case():
    assert {form.kind for form in costly_form.FORMS} == set(FORMS)


def test_the_cost_is_what_the_other_form_spares(recording):
    flow = Table()
    left, right = flow.value(100, 50, role="parameter"), flow.value(50, 100, role="parameter")
    for flow.step in range(2):
        product = flow.op("mm", left, right, shape=(100, 100), line=2, ns=300)
        diagonal = product._replace(shape=(100,), stride=(101,))
        flow.read_on_host(flow.op("exp", diagonal, line=3, ns=100))
    (finding,) = costly_form.find(t := tables(recording, flow))
    assert finding.evidence[-1] == "Line 2 of train.py computes 100 x 100 elements, and only the diagonal is read."
    (change,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert (change.id, change.title) == ("cheaper-form", "Multiply rows with rows, and add up (train.py:2)")
    torch.manual_seed(0)
    names = {"a": torch.rand(4, 3), "b": torch.rand(3, 4)}
    exec(change.after, names)
    torch.testing.assert_close(names["diagonal"], (names["a"] @ names["b"]).diagonal())

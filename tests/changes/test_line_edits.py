"""Edits of single lines: what they become, and what is left to its author."""

import json

import libcst as cst
import pytest
import torch

from diagnose.changes.edits import script_edits
from diagnose.changes.edits.source_edits import edited_source
from diagnose.kernels import indexing
from diagnose.model.own_source import EditedStatement


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        ("without_synchronize", "for x in d:\n    torch.cuda.synchronize()\n", "for x in d:\n    pass\n"),
        ("without_synchronize", "step()\ntorch.cuda.synchronize()\n", "step()\n"),
        ("without_synchronize", "step()\nf(); device.synchronize(0)  # wait\n", "step()\nf()  # wait\n"),
        ("without_contiguous", "a = b\ny = x.t().contiguous() @ w\n", "a = b\ny = x.t() @ w\n"),
        ("with_device_argument", "n\nm = torch.eye(n).to(device)\n", "n\nm = torch.eye(n, device=device)\n"),
        ("with_device_argument", "n\nm = torch.zeros(\n    n,\n    2,\n).cuda()\n", None),
        ("with_device_argument", 'n\nm = torch.ones(2).to("cuda")\n', 'n\nm = torch.ones(2, device="cuda")\n'),
        (
            "with_device_argument",
            "n\nm = torch.arange(n).to(self.device, non_blocking=True)\n",
            "n\nm = torch.arange(n, device=self.device)\n",
        ),
        ("with_masked_results", "x\ny = x[mask].mean() + 1\n", "x\ny = indexing.masked_mean(x, mask) + 1\n"),
        ("with_masked_results", "x\ny = (x * 2)[~m & n].sum()\n", "x\ny = indexing.masked_sum(x * 2, ~m & n)\n"),
        ("with_masked_results", "x\nx[x > 1] = -1.0\n", "x\nindexing.assign_where(x, x > 1, -1.0)\n"),
        ("with_masked_results", "x\nx[m] = y[m]  # those\n", "x\nindexing.assign_where(x, m, y)  # those\n"),
    ],
)
def test_a_line_is_written_anew(function, before, after):
    tree, why = getattr(script_edits, function)(cst.parse_module(before), [2])
    assert why == ""
    compile(tree.code, "train.py", "exec")
    assert after is None or tree.code == after


@pytest.mark.parametrize(
    ("function", "source"),
    [
        ("without_synchronize", "a\nb = torch.cuda.synchronize()\n"),
        ("without_synchronize", "torch.cuda.synchronize()\nb\n"),
        ("without_contiguous", "a\nx.contiguous(memory_format=f)\n"),
        ("with_device_argument", "a\nm = torch.zeros(2).to(torch.float16)\n"),
        ("with_device_argument", "a\nm = torch.zeros(2).to(dtype)\n"),
        ("with_device_argument", "a\nm = torch.zeros(2).to(device, torch.float16)\n"),
        ("with_device_argument", "a\nm = torch.randn(2).to(device)\n"),
        ("with_device_argument", "a\nm = torch.tensor(values).to(device)\n"),
        ("with_device_argument", "a\nm = torch.zeros(2, device=other).to(device)\n"),
        ("with_device_argument", "a\nm = torch.zeros(*shape).to(device)\n"),
        ("with_device_argument", "a\nm = torch.zeros(2).cuda(1)\n"),
        ("with_masked_results", "a\ny = x[0].mean()\n"),
        ("with_masked_results", "a\ny = x[1:].mean()\n"),
        ("with_masked_results", "a\ny = x[m].mean(0)\n"),
        ("with_masked_results", "a\nx[m] = values\n"),
        ("with_masked_results", "a\nx[m] = y[n]\n"),
        ("with_masked_results", "a\nx[m] = z = 0\n"),
        ("with_masked_results", "a\nx[m, 0] = 0\n"),
    ],
)
def test_what_may_mean_something_else_is_left_to_its_author(function, source):
    tree, why = getattr(script_edits, function)(cst.parse_module(source), [2])
    assert tree.code == source
    assert why.startswith("line 2 of the script ")
    assert why.endswith("so its author must decide")


def test_the_new_lines_give_what_the_old_ones_did():
    source = "x[m] = 0.5\na = x[m].mean()\nb = x[~m].sum()\nx[m] = y[m]\nz = torch.eye(3).to(device)\n"
    names = {}
    for text in (source, edited(source, "stay-on-device", [1, 2, 3, 4]), edited(source, "make-on-device", [5])):
        torch.manual_seed(0)
        given = {"x": torch.rand(3, 4), "y": torch.rand(3, 4), "torch": torch, "indexing": indexing, "device": "cpu"}
        given["m"] = given["x"] > 0.5
        exec(compile(text, "train.py", "exec"), given)
        names[text] = [given[name] for name in "abxz"]
    first, *others = names.values()
    assert len(others) == 2
    for other in others:
        for one, two in zip(first, other, strict=True):
            torch.testing.assert_close(two, one)


def edited(source, change, lines):
    text, why = edited_source("import torch\n" + source, "train.py", change, {"lines": [n + 1 for n in lines]})
    assert why == ""
    return text


def test_a_trial_and_a_diff_rewrite_the_same_statements():
    """The process of a trial reads them as JSON."""
    statements = json.loads(
        json.dumps([EditedStatement(2, "y = f(x)", "y = g(x)"), EditedStatement(0, "", "import a")])
    )
    given = {"statements": statements, "lines": (), "device": "cpu"}
    source = "import a, g\ny = f(x)   # of x\n"
    assert edited_source(source, "train.py", "cheaper-line", given)[0] == ("import a, g\nimport a\ny = g(x)   # of x\n")
    for arguments, why in (({}, "the recording does not show"), ({"statements": [[9, "y = 1", "y = 2"]]}, "line 9")):
        after, left = edited_source(source, "train.py", "cheaper-line", arguments)
        assert after == source
        assert left.startswith(why)

"""The model compiled behind the line that makes it."""

import libcst as cst
import pytest

from diagnose.changes.edits.script_edits import with_compiled_model

HEAD = "import torch\nfrom torch import nn\n"
TAIL = "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"


@pytest.mark.parametrize(
    ("made", "added"),
    [
        ("net = Net()\n", "net.compile()\n"),
        ("net = Net(4)\nnet = net.to(device)\n", "net.compile()\n"),
        ("net = nn.Sequential(nn.Linear(2, 2)).to(device)\n", "net = torch.compile(net)\n"),
    ],
)
def test_it_is_compiled_once_it_is_made(made, added):
    changed, why = with_compiled_model(cst.parse_module(HEAD + made + TAIL), "cpu")
    assert (changed.code, why) == (HEAD + made + added + TAIL, "")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("net = torch.compile(Net())\n", "the script compiles already"),
        ("net = DDP(Net())\n", "the script wraps its model (DDP), and the order of both is its author's"),
        ("net = Net()\nb = torch.optim.SGD(other.parameters())\n", "which of the script's modules is the model is"),
        ("net = Net() if small else Other()\n", "net is not made by one call at one place of the script"),
        ("if small:\n    net = A()\nelse:\n    net = B()\n", "net is not made by one call at one place of the script"),
        ("net = nn.Sequential()\ntorch.save(net.state_dict(), path)\n", "model.compile() compiles none of torch's own"),
    ],
)
def test_where_it_is_made_otherwise_its_author_decides(made, why):
    tree = cst.parse_module(HEAD + made + TAIL)
    changed, found = with_compiled_model(tree, "cpu")
    assert changed is tree
    assert found.startswith(why)

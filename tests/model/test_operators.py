"""Names of operators, against what torch says of them."""

import torch

from diagnose.model.operators import POINTWISE

# These are reductions too, copy, or have two results; nobody trains with the last ones.
OTHERS = {"max", "min", "clone", "conj_physical", "frexp"}
RARE = ("__", "_foreach", "special_")


def test_what_torch_calls_pointwise_is():
    named = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = getattr(packet, "overloads", list)()
        if any(torch.Tag.pointwise in getattr(packet, each).tags for each in overloads):
            named.add(name.removesuffix("_"))
    assert len(named) > 100
    assert {name for name in named if not name.startswith(RARE)} - POINTWISE - OTHERS == set()

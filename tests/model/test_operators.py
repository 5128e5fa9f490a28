"""Names of operators, against what torch says of them."""

import torch

from diagnose.model.operators import POINTWISE

# These are reductions too, copy, draw, have two results or one number.
OTHERS = {"max", "min", "clone", "conj_physical", "frexp", "equal", "rrelu"}
RARE = ("_", "_foreach", "special_")


def test_what_torch_calls_pointwise_is():
    named = set()
    every = {schema.name for schema in torch._C._jit_get_all_schemas()}
    for name in sorted(each.removeprefix("aten::") for each in every if each.startswith("aten::")):
        packet = getattr(torch.ops.aten, name)
        overloads = packet.overloads()
        if any(torch.Tag.pointwise in getattr(packet, each).tags for each in overloads):
            named.add(name.removesuffix("_"))
    assert len(named) > 100
    assert {name for name in named if not name.startswith(RARE)} - POINTWISE - OTHERS == set()

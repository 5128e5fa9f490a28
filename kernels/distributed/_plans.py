"""Which layers of a model are split over ranks, and along which side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from torch import nn

__all__ = ["COMMON_PLAN", "Side", "planned"]

Side: TypeAlias = Literal["column", "row"]
COMMON_PLAN: Mapping[str, Side] = {
    r".*\.(q_proj|k_proj|v_proj|gate_proj|up_proj|wq|wk|wv|w1|w3|fc1|c_fc|linear1)": "column",
    r".*\.(o_proj|down_proj|wo|w2|fc2|linear2)": "row",
}
"""Names of layers in common transformers: of Llama, Mistral, Qwen, GPT-2's MLP and torch's own MLP."""


def planned(model: nn.Module, plan: Mapping[str, Side]) -> dict[str, Side]:
    """Return the layers whose whole names match one of the plan's expressions, with the side of the first that does."""
    found = {}
    for name, _ in model.named_modules():
        side = next((side for pattern, side in plan.items() if re.fullmatch(pattern, name)), None)
        if side is not None:
            found[name] = side
    return found

"""Which layers of a model are split over ranks, and along which side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

__all__ = ["COMMON_PLAN", "Side", "planned"]

Side: TypeAlias = Literal["column", "row"]


@dataclass(frozen=True)
class _Pair:
    """Names of layers beside each other: all of ``columns``, and one of ``rows``, which takes what they give."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]


PAIRS = (
    _Pair(("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    _Pair(("wq", "wk", "wv"), ("wo",)),
    _Pair(("gate_proj", "up_proj"), ("down_proj",)),
    _Pair(("up_proj",), ("down_proj",)),
    _Pair(("w1", "w3"), ("w2",)),
    _Pair(("w1",), ("w2",)),
    _Pair(("fc1",), ("fc2",)),
    _Pair(("c_fc",), ("c_proj",)),
    _Pair(("linear1",), ("linear2",)),
)
"""Layers of common transformers: of Llama, Mistral, Qwen, OPT, GPT-2's MLP and torch's own MLP. The first that fits a
module counts, so those of more layers come first."""

COMMON_PLAN: Mapping[str, Side] = {
    rf"(.*\.)?({'|'.join(dict.fromkeys(name for pair in PAIRS for name in pair.columns))})": "column",
    rf"(.*\.)?({'|'.join(dict.fromkeys(name for pair in PAIRS for name in pair.rows))})": "row",
}
"""The names of ``PAIRS``. As a plan it splits whole pairs only, and leaves layers of these names without one as they
are."""


def planned(model: nn.Module, plan: Mapping[str, Side]) -> dict[str, Side]:
    """Return the layers whose whole names match one of the plan's expressions, with the side of the first that does."""
    found: dict[str, Side] = {}
    whole = dict(_whole_pairs(model)) if plan is COMMON_PLAN else None
    for name, _ in model.named_modules():
        side = next((side for pattern, side in plan.items() if re.fullmatch(pattern, name)), None)
        if side is not None and (whole is None or whole.get(name) == side):
            found[name] = side
    return found


def _whole_pairs(model: nn.Module) -> Iterator[tuple[str, Side]]:
    for path, parent in model.named_modules():
        children = dict(parent.named_children())
        taken: set[str] = set()
        for pair in PAIRS:
            row = next((name for name in pair.rows if name in children), None)
            if row is None or row in taken or any(name not in children for name in pair.columns):
                continue
            taken.add(row)
            if _fits(children[pair.columns[0]], children[row]):
                yield from ((f"{path}.{name}" if path else name, "column") for name in pair.columns)
                yield f"{path}.{row}" if path else row, "row"


def _fits(column: nn.Module, row: nn.Module) -> bool:
    """Return whether one takes what the other gives, as far as both are linear."""
    linear = isinstance(column, nn.Linear) and isinstance(row, nn.Linear)
    return not linear or column.out_features == row.in_features

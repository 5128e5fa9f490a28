"""Finds the repeated blocks of a model: what is gathered, sent or computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

from torch import nn

__all__ = ["Blocks", "find_blocks", "shared_across"]

Blocks: TypeAlias = type[nn.Module] | Callable[[str, nn.Module], bool] | Sequence[nn.Module] | None


def find_blocks(model: nn.Module, blocks: Blocks = None) -> list[nn.Module]:
    """Return the blocks, none inside another: of a class, as a function picks, as given, or the repeated ones.

    Repeated are the children of a ModuleList or Sequential, two at least and all of one class, with parameters.

    Raises:
        ValueError: nothing in the model is as described.
    """
    named = dict(model.named_modules())
    found: list[nn.Module]
    if blocks is None:
        found = [b for m in named.values() for b in _repeated(m)]
    elif isinstance(blocks, type):
        kind = cast("type[nn.Module]", blocks)
        found = [m for m in named.values() if isinstance(m, kind)]
    elif callable(blocks):
        found = [m for name, m in named.items() if name and blocks(name, m)]
    else:
        found = list(blocks)
        outside = [type(b).__name__ for b in found if all(b is not m for m in named.values())]
        if outside:
            raise ValueError(f"These blocks are not part of the model: {', '.join(outside)}.")
    if blocks is not None and not found:
        raise ValueError(f"No block of {type(model).__name__} is as described by {blocks!r}; name a class that it has.")
    inner = {id(m) for b in found for m in b.modules() if m is not b}
    return [b for b in found if id(b) not in inner]


def _repeated(module: nn.Module) -> list[nn.Module]:
    children = list(module.children()) if isinstance(module, nn.ModuleList | nn.Sequential) else []
    alike = len(children) > 1 and len({type(c) for c in children}) == 1
    return children if alike and all(any(True for _ in c.parameters()) for c in children) else []


def shared_across(model: nn.Module, blocks: Iterable[nn.Module]) -> list[str]:
    """Return the parameters that belong to more than one block, or to one and to the rest of the model."""
    owner: dict[int, int] = {}
    for number, block in enumerate(blocks):
        for p in block.parameters():
            if owner.setdefault(id(p), number) != number:
                owner[id(p)] = -1
    inside = {id(m) for block in blocks for m in block.modules()}
    for m in model.modules():
        if id(m) not in inside:
            owner.update({id(p): -1 for p in m.parameters(recurse=False) if id(p) in owner})
    return [name for name, p in model.named_parameters() if owner.get(id(p)) == -1]

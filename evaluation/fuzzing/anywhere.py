"""A change of one value anywhere in a JSON document, whatever it means."""

from __future__ import annotations

import copy
import random
from typing import Any

from fuzzing import values

__all__ = ["mutate_anywhere"]


def mutate_anywhere(rng: random.Random, document: Any) -> str:  # any JSON
    """Change one value of a document in place, wherever it stands: another value, none, twice, or another key."""
    spots = list(_spots(document))
    if not spots:
        return "nothing"
    container, key = rng.choice(spots)
    how = rng.randrange(6)
    if how == 0:
        del container[key]
        return f"del {key}"
    old = container[key]
    if how == 1 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(old))
    elif how == 2 and isinstance(old, (int, float)):
        container[key] = rng.choice((-old, old * 1e9, old * 2, old / 3, 0, old + 1, -1e-9))
    elif how == 3 and isinstance(old, list):
        container[key] = rng.choice(([], old * 2, old[:1], list(reversed(old)), {"0": 1}, None))
    elif how == 4 and isinstance(container, dict) and container:
        container[values.name(rng)] = copy.deepcopy(old)
    else:
        container[key] = values.name(rng) if isinstance(old, str) and rng.random() < 0.5 else values.value(rng)
    return f"set {key}"


def _spots(document: Any) -> Any:
    items = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
    for key, found in items:
        yield document, key
        if isinstance(found, (dict, list)):
            yield from _spots(found)

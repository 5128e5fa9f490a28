"""Whether loading a batch in the script's process draws random numbers: the generators before and after it."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from diagnose.capture.record.random_state import random_state

__all__ = ["DrawnBatches"]

MAX_BATCHES = 4  # of a dataset, that are looked at: 30 µs each
MIN_BATCHES = 2  # that have to agree
MAX_HELD, MAX_ITEMS = 500, 50  # objects of a dataset that are looked at; of a list, as of transforms
# Packages whose transforms draw from generators of their own, which nothing here sees.
_OWN_GENERATORS = ("albumentations", "audiomentations", "imgaug", "monai", "torchio")


class DrawnBatches:
    """Looks at the global generators around a few batches of each dataset.

    An iterator's first batch is left out: with it the sampler draws the seed of its order.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()  # datasets with generators of their own
        self._begun: weakref.ref[Any] | None = None  # the iterator whose first batch came
        self._before: tuple[Hashable, ...] = ()
        self._looked: Counter[int] = Counter()  # batches, by dataset
        self._drew: set[int] = set()

    def asked(self, iterator: Any) -> None:  # torch's iterator, whose type is private
        """Take down where the generators stand before a batch is made."""
        self._before = ()
        if self._begun is None or self._begun() is not iterator:
            self._begun = weakref.ref(iterator)
            return
        dataset = getattr(iterator, "_dataset", None)
        if self._looked[id(dataset)] < MAX_BATCHES:
            if not self._looked[id(dataset)] and _has_generator(dataset):
                self._own.add(id(dataset))
            self._before = random_state()

    def delivered(self, dataset: object, iterator: object) -> None:
        """Compare with where they stand once it is there."""
        if self._before and self._begun is not None and self._begun() is iterator:
            self._looked[id(dataset)] += 1
            if random_state() != self._before:
                self._drew.add(id(dataset))
        self._before = ()

    def of(self, dataset: int) -> bool | None:
        """Return whether batches of a dataset, by its id, draw random numbers; None where that is not known."""
        if dataset in self._drew:
            return True
        is_hidden = dataset in self._own or any(name in sys.modules for name in _OWN_GENERATORS)
        return False if self._looked[dataset] >= MIN_BATCHES and not is_hidden else None


def _has_generator(dataset: object) -> bool:
    """Return whether a dataset, or what it holds, as a transform, has a generator of random numbers of its own."""
    import random

    import torch

    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds = (*kinds, numpy.Generator, numpy.RandomState)
    pending, seen = [dataset], set[int]()
    while pending and len(seen) < MAX_HELD:
        held = pending.pop()
        if isinstance(held, kinds):
            return True
        if id(held) not in seen and not isinstance(held, type):
            seen.add(id(held))
            pending += _inside(held)
    return False


def _inside(held: Any) -> Iterable[object]:
    """Return an object's attributes, and the items of a short list, tuple or mapping."""
    attributes = getattr(held, "__dict__", {}).values()
    if type(held) not in (list, tuple, dict) or len(held) > MAX_ITEMS:
        return attributes
    return [*attributes, *(held.values() if type(held) is dict else held)]

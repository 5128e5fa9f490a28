"""One change, one file: its page is the file's docstring, its id is the file's name.

``CHANGE`` is all that is known of a change: what a prescription shows, what a replay does with it, how a trial makes it
in an unmodified script, and how it is written into one. A file of this folder is a change by having a CHANGE: nothing
else has to be registered. Which rules prescribe it is a field of their META.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

from diagnose.changes.common.change import Change, Patch

__all__ = ["CHANGES", "any_compiles", "by_hand", "patch_of"]


class _Changes(Mapping[str, Change]):
    """All changes by id; a file is imported when it is asked for, since the process of a trial needs few."""

    def __init__(self) -> None:
        names = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
        self._ids = tuple(sorted(name.replace("_", "-") for name in names))

    def __getitem__(self, name: str) -> Change:
        if name not in self._ids:
            raise KeyError(name)
        found = import_module(f"{__name__}.{name.replace('-', '_')}").CHANGE
        assert isinstance(found, Change), "a file of this folder holds a change"
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


CHANGES: Mapping[str, Change] = _Changes()


def patch_of(name: str) -> Patch | None:
    """Return how a trial makes a change, None for one that is unknown or made by hand."""
    change = CHANGES.get(name)
    return change.patch if change is not None and isinstance(change.patch, Patch) else None


def by_hand(name: str) -> str:
    """Return why only the script's author can make a change, "" where a trial can."""
    change = CHANGES.get(name)
    return change.patch.reason if change is not None and not isinstance(change.patch, Patch) else ""


def any_compiles(ids: Iterable[str]) -> bool:
    """Return whether one of the changes compiles."""
    return any(patch.compiles for patch in map(patch_of, ids) if patch is not None)

"""Rules and changes of other packages, which are found by entry points.

A package names a module per rule or change: the entry's name is the id, its value the module. One that cannot be used
is left out, and why is kept as a sentence for the diagnosis.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NO_PLUGINS = "DIAGNOSE_NO_PLUGINS"  # the environment variable that leaves them out


GROUPS = ("diagnose.analyzers", "diagnose.changes")
_STANDARD = "_frozen_importlib_external"  # the module of the finder that looks through folders of sys.path
_METADATA = (".dist-info", ".egg-info", "egg-info")


@dataclass(frozen=True, slots=True)
class Plugins:
    """What one group of entry points gave."""

    modules: dict[str, ModuleType] = field(default_factory=dict)  # by id
    faults: tuple[str, ...] = ()  # a sentence for each that is left out


def load_plugins(group: str, attribute: str, kind: type, taken: frozenset[str]) -> Plugins:
    """Import the modules of a group.

    Args:
        group: Name of the entry points, such as "diagnose.analyzers".
        attribute: What a module has to hold, under this name.
        kind: Type of that; its ``id`` must be the entry's name.
        taken: Ids of diagnose's own.
    """
    modules: dict[str, ModuleType] = {}
    faults = []
    for entry in sorted(_entries(group)):
        try:
            module = entry.load()
            found = getattr(module, attribute, None)
            if not isinstance(found, kind) or getattr(found, "id", None) != entry.name:
                raise TypeError(f"it holds no {attribute} of that id")
            if entry.name in taken or entry.name in modules:
                raise ValueError("the id is taken")
            modules[entry.name] = module
        except Exception as error:  # code of other people, whose fault must not end the analysis
            why = one_line(f"{type(error).__name__}: {error}")
            faults.append(f"The plug-in {one_line(entry.name)} ({one_line(entry.value)}) is left out: {why}.")
    return Plugins(modules, tuple(faults))


def installed(*groups: str) -> tuple[str, ...]:
    """Return what stands for all plug-ins of these groups: names, modules, and versions of their packages."""
    entries = (entry for group in groups for entry in _entries(group))
    return tuple(sorted(f"{e.group} {e.name} {e.value} {e.dist.version if e.dist else ''}" for e in entries))


def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; the standard library's reader (0.1 s) is loaded only where one names it."""
    if os.environ.get(NO_PLUGINS) or not _is_named(group):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _is_named(group: str) -> bool:
    """Return whether a package on the path names the group, or one whose metadata cannot be looked through here."""
    foreign = any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder.__module__ != _STANDARD)
    return foreign or f"[{group}]".encode() in _entry_points(tuple(sys.path))


@cache
def _entry_points(path: tuple[str, ...]) -> bytes:
    """Return the entry points of all packages in these folders; every group's header where one is an archive."""
    texts: list[bytes] = []
    for folder in path:
        try:
            with os.scandir(folder or ".") as items:
                metadata = [item.path for item in items if item.name.lower().endswith(_METADATA)]
        except NotADirectoryError:
            texts.extend(f"[{group}]".encode() for group in GROUPS)
            continue
        except OSError:
            continue
        for package in metadata:
            with suppress(OSError):
                texts.append(Path(package, "entry_points.txt").read_bytes())
    return b"\n".join(texts)

"""Rules and changes of other packages, which are found by entry points.

A package names a module per rule or change: the entry's name is the id, its value the module. One that cannot be used
is left out, and why is kept as a sentence for the diagnosis.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType

from diagnose.text.plain_text import one_line

__all__ = ["NO_PLUGINS", "Plugins", "installed", "load_plugins"]

NO_PLUGINS = "DIAGNOSE_NO_PLUGINS"  # the environment variable that leaves them out


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
    for entry in () if os.environ.get(NO_PLUGINS) else sorted(entry_points(group=group)):
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
    if os.environ.get(NO_PLUGINS):
        return ()
    entries = (entry for group in groups for entry in entry_points(group=group))
    return tuple(sorted(f"{e.group} {e.name} {e.value} {e.dist.version if e.dist else ''}" for e in entries))

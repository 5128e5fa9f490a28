"""What lies around the working folder, as its copy is to see it: ``../data``, packages of the parent folder, the home.

The copy lies below a folder that stands for the root: the name of everything in it is that folder and the name of the
original. The folders above the working folder and the user's home are made there, and hold links to what lies in the
originals: a script that makes a file in its home makes it there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from diagnose.trials.copy_plan import CopyPlan, Entry

__all__ = ["below", "plan_surroundings"]

MAX_BESIDE = 5_000  # names in one folder above: a home with more is no project's


def below(root: Path, original: Path) -> Path:
    """Return where a path stands below the folder that stands for the root."""
    return root.joinpath(*original.parts[1:])


def plan_surroundings(
    cwd: Path, home: Path | None = None, *, own: Sequence[Path] = (), without: Sequence[Path] = ()
) -> CopyPlan:
    """Return a link for every name in the home, and next to the working folder and each folder above it.

    Args:
        cwd: The working folder, which another plan copies.
        home: The user's home.
        own: Caches, there or not, that are folders of the run's. What the working folder holds is left to its plan.
        without: Folders that are left out.

    Returns:
        The plan. A folder of more than `MAX_BESIDE` names is listed in its ``unreadable`` and has none of them.
    """
    here = Path(os.path.realpath(cwd))
    outside = [path for path in own if not path.is_relative_to(here)]
    homes = [*_above(home), home] if home is not None and not home.is_relative_to(here) else []
    seen = dict.fromkeys((*_above(here), *homes))
    listed = dict.fromkeys((*seen, *(folder for path in outside for folder in _above(path))))
    hidden = {os.path.realpath(path) for path in without}
    plan = CopyPlan(here)
    for folder in listed:
        plan.entries[_name(folder)] = Entry("folder", str(folder))
    for path in (here, *outside):
        plan.entries.setdefault(_name(path), Entry("copy", str(path)))
    for folder in listed:
        if not _add_names(plan, folder, hidden) and folder in seen:
            plan.unreadable.append(str(folder))
    return plan


def _above(path: Path) -> list[Path]:
    """Return the folders above a path, the root apart, from the top down."""
    return [*reversed(path.parents[:-1])]


def _name(folder: Path) -> str:
    return str(folder.relative_to(folder.anchor))


def _add_names(plan: CopyPlan, folder: Path, hidden: set[str]) -> bool:
    """Plan links for what a folder holds; return False if it cannot be listed or holds too much."""
    try:
        with os.scandir(folder) as found:
            children = [child for child in found if child.path not in hidden]
    except OSError:
        return False
    if len(children) > MAX_BESIDE:
        return False
    for child in children:
        plan.entries.setdefault(_name(Path(child.path)), Entry("link", child.path))
    return True

"""What lies around the working folder, as its copy is to see it: ``../data``, packages of the parent folder, the home.

The copy lies below a folder that stands for the root: the name of everything in it is that folder and the name of the
original. The folders above the working folder and the user's home are made there, and hold links to what lies in the
originals: a script that makes a file in its home makes it there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from diagnose.trials.copy_plan import CopyPlan, Entry

__all__ = ["below", "plan_surroundings"]

MAX_BESIDE = 5_000  # names in one folder above: a home with more is no project's


def below(root: Path, original: Path) -> Path:
    """Return where a path stands below the folder that stands for the root."""
    return root.joinpath(*original.parts[1:])


def plan_surroundings(
    cwd: Path, home: Path | None = None, *, own: Collection[str] = (), without: Sequence[Path] = ()
) -> CopyPlan:
    """Return a link for every name in the home, beside the working folder and beside each folder above it.

    Args:
        cwd: The working folder, which another plan copies.
        home: The user's home, unless it lies in the working folder.
        own: Names in the home that are folders of the run's, there or not.
        without: Folders that are left out.

    Returns:
        The plan. A folder of more than `MAX_BESIDE` names is listed in its ``unreadable`` and has none of them.
    """
    here = Path(os.path.realpath(cwd))
    listed = dict.fromkeys((*reversed(here.parents[:-1]), *_chain(home)))
    hidden = {os.path.realpath(path) for path in without}
    plan = CopyPlan(here)
    for folder in listed:
        plan.entries[_name(folder)] = Entry("folder", str(folder))
    plan.entries[_name(here)] = Entry("copy", str(here))
    for name in own:
        assert home is not None
        plan.entries.setdefault(_name(home / name), Entry("copy", str(home / name)))
    for folder in listed:
        _add_names(plan, folder, hidden)
    return plan


def _chain(home: Path | None) -> list[Path]:
    return [*reversed(home.parents[:-1]), home] if home is not None else []


def _name(folder: Path) -> str:
    return str(folder.relative_to(folder.anchor))


def _add_names(plan: CopyPlan, folder: Path, hidden: set[str]) -> None:
    try:
        with os.scandir(folder) as found:
            children = [child for child in found if child.path not in hidden]
    except OSError:
        plan.unreadable.append(str(folder))
        return
    if len(children) > MAX_BESIDE:
        plan.unreadable.append(str(folder))
        return
    for child in children:
        plan.entries.setdefault(_name(Path(child.path)), Entry("link", child.path))

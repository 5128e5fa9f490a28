"""What lies around the working folder, as the copy of it is to see it: ``../data`` and packages of the parent folder.

The copy lies below a folder that stands for the root: the name of everything in it is that folder and the name of the
original. The folders above the working folder are made there, and hold links to what lies in the originals.
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


def plan_surroundings(cwd: Path, *, without: Sequence[Path] = ()) -> CopyPlan:
    """Return a link for every name beside the working folder and beside each folder above it, the root apart.

    A folder of more than `MAX_BESIDE` names is listed in ``unreadable`` and has none of them.
    """
    here = Path(os.path.realpath(cwd))
    hidden = {os.path.realpath(path) for path in without}
    plan = CopyPlan(here)
    for i, folder in enumerate((*reversed(here.parents[:-1]), here)):
        name = str(folder.relative_to(folder.anchor))
        is_last = i == len(here.parents) - 1
        plan.entries[name] = Entry("copy" if is_last else "folder", str(folder))
        if not is_last:
            _add_names(plan, name, folder, hidden)
    return plan


def _add_names(plan: CopyPlan, name: str, folder: Path, hidden: set[str]) -> None:
    chain = {str(plan.source), *map(str, plan.source.parents)}
    try:
        with os.scandir(folder) as found:
            children = [child for child in found if child.path not in chain and child.path not in hidden]
    except OSError:
        plan.unreadable.append(str(folder))
        return
    if len(children) > MAX_BESIDE:
        plan.unreadable.append(str(folder))
        return
    for child in children:
        plan.entries[f"{name}/{child.name}"] = Entry("link", child.path)

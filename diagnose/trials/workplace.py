"""Where runs work: a copy of the working folder with a home and caches, put back before each run.

The copy lies below ``root``, a folder that stands for the root of the file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.text.plain_text import clean
from diagnose.trials.backup import back_up, check_number
from diagnose.trials.caches import seed, user_caches
from diagnose.trials.copy_plan import CopyPlan
from diagnose.trials.copying import remove_tree
from diagnose.trials.isolation import SHARED_MEMORY
from diagnose.trials.limits import Limits
from diagnose.trials.originals import Originals
from diagnose.trials.surroundings import below, plan_surroundings
from diagnose.trials.working_copy import WorkingCopy

__all__ = ["ROOT", "Workplace"]

ROOT, TEMPORARY = "cwd", "tmp"  # below the run's own folder
MAX_SOCKET_FOLDER = 70  # bytes: macOS allows 104 for a socket, of which Python's multiprocessing needs 33
# Bytecode of modules is not written next to the user's sources, and asking git for its state is only reading
PROTECTED = {"PYTHONDONTWRITEBYTECODE": "1", "GIT_OPTIONAL_LOCKS": "0"}


@dataclass
class Workplace:
    """The folders of all runs, and the user's files as they were before the first.

    Args:
        plan: What the copy of the working folder consists of.
        private: The folder that all of it lies in.
        results: The folder of what the runs measured.
        script: The folder of the script.
        limits: What a run may write to.
        report: Takes sentences for the user.

    Raises:
        UsageError: there is too much to be backed up, if nothing keeps a run from changing it.
    """

    plan: CopyPlan
    private: Path
    results: Path
    script: Path
    limits: Limits
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        own, plan = (self.private, self.results), self.plan
        self.root = self.private / ROOT
        self._report_plan()
        home = _home()
        self._caches = user_caches(home)
        around = plan_surroundings(plan.source, home, own=[cache.path for cache in self._caches], without=own)
        for folder in around.unreadable:
            self.report(f"{clean(folder)} cannot be listed or holds too many names, so runs do not see what lies in it")
        self._home = home if str(home) not in around.unreadable else None
        self._surroundings = WorkingCopy(around, self.root)
        self._copy = WorkingCopy(plan, below(self.root, around.source))
        self._around = around
        self._is_seeded = False
        self._backup: Path | None = None
        self._originals = self._watched()

    def restore(self) -> Path:
        """Put everything back but what caches hold; return the working folder of the next run.

        Raises:
            UsageError: it cannot be written.
        """
        self._surroundings.restore()
        self._copy.restore()
        for cache in () if self._is_seeded else self._caches:
            if self._around.kind_of(cache.path) == "copy":
                seed(cache, below(self.root, cache.path))
        self._is_seeded = True
        temporary = self.private / TEMPORARY
        remove_tree(temporary)
        temporary.mkdir()
        return self.path

    @property
    def path(self) -> Path:
        """Return the copy of the working folder."""
        return self._copy.path

    def settings(self) -> dict[str, str]:
        """Return what a run must find in its environment: its home, its caches, and where temporary files go."""
        found = {**PROTECTED, "PWD": str(self.path)}
        for cache in self._caches:
            found |= {name: str(below(self.root, path)) for name, path in cache.variables.items()}
        if self._home is not None:
            found["HOME"] = str(below(self.root, self._home))
        folder = self.private / TEMPORARY
        if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER and self.limits.is_isolated:
            found["TMPDIR"] = SHARED_MEMORY  # the run's own
        elif len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER or self.limits.writable is not None:
            found["TMPDIR"] = str(folder)
        return found

    def verify(self) -> str:
        """Return a sentence about those of the user's files that have changed, "" if none has."""
        changes = self._originals.look()
        if changes.new:
            more = f" and {len(changes.new) - 1} more" if len(changes.new) > 1 else ""
            self.report(f"{clean(changes.new[0])}{more} appeared while the trials ran; nothing of it was removed")
        if not changes.found:
            return ""
        saved, self._backup = self._saved(changes.found), None
        return (
            f"{clean(changes.text)} while the trials ran, so no further one was started.{saved} If the script writes "
            "there, let it write below its working folder, or allow it with --cwd-mode same; if not, prove again."
        )

    def remove(self) -> str:
        """Remove the copy, and the backup unless files have changed since the last look: return a sentence then."""
        changed = self.verify() if self._backup is not None else ""
        if self._backup is not None:
            remove_tree(self._backup)
            self._backup = None
        self._surroundings.remove()
        return changed

    def _report_plan(self) -> None:
        plan = self.plan
        if plan.is_large:
            self.report(f"copying the working folder, {plan.size_text}, to {self.private}")
        if plan.unreadable:
            num, first = len(plan.unreadable), clean(plan.unreadable[0])
            self.report(f"{first}{f' and {num - 1} more' if num > 1 else ''} cannot be read and is not in the copy")

    def _watched(self) -> Originals:
        plan, script = self.plan, self.script
        here, is_restricted = plan.source.resolve(), not self.limits.backup
        outside = [*plan.linked, *([] if script.is_relative_to(here) else [script])]
        project = [] if is_restricted else _project(here)
        named = [*self.limits.allowed, *([] if is_restricted else [self.limits.backup])]
        without = (self.private, self.results, *map(Path, named), plan.source)
        originals = Originals([plan.source], [*outside, *project], without)
        if originals.unverified:
            names = ", ".join(map(clean, originals.unverified))
            self.report(f"{names} holds too many files to see whether the script writes there")
        if not is_restricted:
            check_number(path for path in originals.unverified if Path(path) not in project)
            self._backup = back_up(originals.sizes)
            self.report(f"backed up {len(originals.sizes):,} files that the runs could change to {self._backup}")
        return originals

    def _saved(self, changed: Mapping[str, str]) -> str:
        """Return a sentence about what the backup has of the changed files."""
        if self._backup is None:
            return ""
        num = sum(below(self._backup, Path(path)).exists() for path in changed)
        if not num:
            return ""
        which = "What was there before" if num == len(changed) else f"What {num} of them held before"
        return f" {which} is in {self._backup}."


def _home() -> Path | None:
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return None
    return home if home.is_dir() and home.parent != home else None


def _project(cwd: Path) -> list[Path]:
    """Return the repository that the working folder is a part of, which a run that nothing restricts could change."""
    return next(([folder] for folder in cwd.parents if (folder / ".git").exists()), [])

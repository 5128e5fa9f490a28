"""The folders that a server reads, and nothing outside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import InputError, UsageError
from diagnose.model.files import printable

__all__ = ["Roots"]


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders below which may be read, links followed."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Roots:
        """Return the folders of ``--root``, else the working folder.

        Raises:
            UsageError: one of them is no folder.
        """
        for name in names:
            if not Path(name).is_dir():
                raise UsageError(f"Invalid --root {printable(name)}: use an existing folder.")
        return cls(tuple(Path(name).resolve() for name in names or (".",)))

    def path(self, name: str) -> str:
        """Return what to read in the place of ``name``: an existing path without links, relative where it can be.

        Raises:
            InputError: it does not exist, or it or a link in it leads elsewhere.
        """
        try:
            found = Path(name).resolve(strict=True)
            entries = list(os.scandir(found)) if found.is_dir() else []
            links = [Path(entry.path).resolve() for entry in entries if entry.is_symlink()]
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
            raise InputError(
                f"{printable(name)} cannot be read: give the path of a file or folder that exists here."
            ) from None
        for path in (found, *links):
            if not any(path.is_relative_to(folder) for folder in self.folders):
                where = " and ".join(map(printable, self.folders))
                raise InputError(
                    f"{printable(name)} leads out of {where} and is not read; the server reads elsewhere with "
                    "diagnose mcp --root FOLDER."
                )
        here = Path.cwd().resolve()
        return str(found.relative_to(here)) if found.is_relative_to(here) else str(found)

"""Writes a capture folder: everything goes into a folder beside it first, and is moved into place when complete.

One rank's folder appears at once, by a rename. Several ranks share a folder: each moves its files in, its
``capture.rank<r>.json`` last, so a rank that has one is complete. If the process is killed, the folder beside it
stays and can be read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.capture.packing import open_packed
from diagnose.errors import OutputError

if TYPE_CHECKING:
    from diagnose.captures import CaptureInfo

__all__ = ["CaptureFolder"]

OUR_FILES = (
    "capture.json",
    "capture.rank*.json",
    "rank*.pt.trace.json.gz",
    "rank*.samples.json.gz",
    "rank*.lines.json.gz",
)


class CaptureFolder:
    """The folder that one rank's capture will be; ``partial`` is where it is written until then.

    Raises:
        OutputError: something else is there already, or the place cannot be written.
    """

    def __init__(self, target: Path, *, rank: int, num_ranks: int, force: bool) -> None:
        self.target = target.absolute()  # the script may change the current folder
        self._rank, self._num_ranks = rank, num_ranks
        self._shared = num_ranks > 1
        self._name = f"capture.rank{rank}.json" if self._shared else "capture.json"
        self._check(force=force)
        suffix = f".rank{rank}" if self._shared else ""
        self.partial = self.target.with_name(f"{self.target.name}{suffix}.partial-{os.getpid()}")
        try:
            self.partial.mkdir(parents=True)
        except OSError as error:
            raise OutputError(
                f"The capture folder {target} cannot be written ({error.strerror}); give another place."
            ) from error

    def _check(self, *, force: bool) -> None:
        if self.target.exists() and not self.target.is_dir():
            raise OutputError(f"{self.target} is a file, but a capture is a folder; give another name.")
        taken = self.target / self._name if self._shared else self.target
        occupied = taken.is_file() or (taken.is_dir() and any(taken.iterdir()))
        if occupied and not force:
            raise OutputError(
                f"{self.target} is not empty; give another name, or --force to replace the capture in it."
            )

    def write_info(self, info: CaptureInfo) -> None:
        """Write or rewrite the description in the partial folder."""
        path = self.partial / self._name
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(info.to_json(), indent=1), encoding="utf-8")
        fresh.replace(path)

    def write_samples(self, name: str, rows: dict[str, object]) -> None:
        """Write the sampler's rows."""
        with open_packed(self.partial / name) as packed:
            packed.write(json.dumps(rows).encode())

    def publish(self) -> Path:
        """Move everything to its place and return it.

        Raises:
            OutputError: the place cannot be written; the message names where the files are.
        """
        try:
            self._publish()
        except OSError as error:
            raise OutputError(
                f"The capture could not be moved to {self.target} ({error.strerror}); it is in {self.partial}."
            ) from error
        return self.target

    def _publish(self) -> None:
        if not self._shared and (not self.target.exists() or not any(self.target.iterdir())):
            self.partial.rename(self.target)
            return
        self.target.mkdir(exist_ok=True)
        self._remove_earlier()
        files = sorted(self.partial.iterdir(), key=lambda path: path.name == self._name)
        for path in files:
            path.replace(self.target / path.name)
        self.partial.rmdir()

    def _remove_earlier(self) -> None:
        """Remove an earlier capture's files and nothing else; of several ranks each removes its own."""
        for path in [path for pattern in OUR_FILES for path in self.target.glob(pattern)]:
            rank = _rank_of(path.name)
            if not self._shared or rank == self._rank or (self._rank == 0 and not 0 <= rank < self._num_ranks):
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the partial folder."""
        shutil.rmtree(self.partial, ignore_errors=True)


def _rank_of(name: str) -> int:
    """Return the rank in a capture file's name, -1 where it has none."""
    found = re.search(r"rank(\d+)", name)
    return int(found[1]) if found else -1

"""``diagnose trace`` and the files that a stopped script may overwrite: what is at risk, and a run in a copy instead.

The copy is that of ``prove``. A capture made in it names the user's own files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import diagnose
from diagnose.capture.process.launch import Place
from diagnose.capture.record.folder import CaptureFolder
from diagnose.errors import UsageError
from diagnose.model.files import cannot_write, printable
from diagnose.trials.copying import below, children_of, in_copy, is_environment, plan_copy, plan_surroundings
from diagnose.trials.guard import can_restrict
from diagnose.trials.launch import VARIABLE, remove_leftovers, run_folder
from diagnose.trials.workplace import WorkingCopy, name_originals

CHECKPOINTS = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".bin"})
INFO = "capture.json"

# Python that gives up the right to write anywhere but to the places of a file, then starts the rest of its arguments.
RESTRICTED = (
    "import json, os, sys; sys.path.append(sys.argv[1]); from diagnose.trials.guard import restrict; "
    "restrict(json.load(open(sys.argv[2]))); os.execv(sys.argv[3], sys.argv[3:])"
)


def warn_of_checkpoints(folder: Path, report: Callable[[str], None]) -> None:
    """Report, before a run that will be stopped, that it may overwrite the checkpoints of the folder."""
    if found := _checkpoint(folder):
        report(
            f"{printable(found)} may be overwritten: the script is stopped early, and code in finally or atexit still "
            "runs; use --copy to run it in a copy of the folder, or --keep-going to let it finish"
        )


def _checkpoint(folder: Path) -> Path | None:
    """Return the first file or folder with the suffix of a checkpoint, relative to the folder."""
    # A folder of data must not delay the run.
    waiting, num_left = [folder], 5_000
    for here in waiting:
        for child in children_of(str(here)):
            num_left -= 1
            path = Path(child.path)
            if num_left < 0:
                return None
            if path.suffix in CHECKPOINTS:
                return path.relative_to(folder)
            if child.is_dir(follow_symlinks=False) and not path.name.startswith(".") and not is_environment(path):
                waiting.append(path)
    return None


@dataclass(frozen=True)
class CopiedFolder:
    """A copy of the working folder that a script can run in; ``capture`` is where its capture is written."""

    place: Place
    capture: Path
    _root: Path  # stands for the root of the file system
    _original: Path
    _copy: Path
    _target: CaptureFolder

    def words(self, script: Sequence[str]) -> list[str]:
        """Return the words of a command with absolute paths of the working folder turned into those of the copy."""
        return [in_copy(word, self._original, self._copy) for word in script]

    def sentence(self, text: str) -> str:
        """Return a sentence about the run with the user's own files in it."""
        return text.replace(str(self._root), "")

    def publish(self, capture: Path) -> Path:
        """Move the capture to the place that the user asked for, and return that.

        Raises:
            OutputError: the place cannot be written.
        """
        name_originals(capture, self._root)
        try:
            for file in sorted(capture.iterdir(), key=lambda file: file.name == INFO):  # the description last
                shutil.move(file, self._target.partial / file.name)
        except OSError as error:
            raise cannot_write(self._target.target, error) from error
        return self._target.publish()


@contextmanager
def copied_folder(capture: Path, *, force: bool, report: Callable[[str], None]) -> Iterator[CopiedFolder]:
    """Copy the working folder; after the block the copy is gone, with every process that runs in it.

    Raises:
        UsageError: the folder holds too much, or cannot be copied.
        OutputError: there is no place for the copy or for the capture.
    """
    here = Path.cwd()
    target = CaptureFolder(capture, rank=0, num_ranks=1, force=force)
    try:
        remove_leftovers()
        with run_folder() as private:
            root, without = private / "cwd", (private, target.partial)
            try:
                plan, around = (
                    plan_copy(here, without=without, target=private),
                    plan_surroundings(here, without=without),
                )
                copy = WorkingCopy(plan, below(root, around.source))
                limits = "files that it names by an absolute path are not protected"
                if can_restrict():
                    limits = "it cannot write to the folder itself, and files elsewhere are not protected"
                report(f"the script runs in a copy of the working folder ({plan.size_text}); {limits}")
                WorkingCopy(around, root).restore()
                copy.restore()
            except UsageError as error:  # its remedy is one of prove
                why = str(error).partition("; ")[0]
                raise UsageError(f"{why}; set TMPDIR to a larger disk, or leave out --copy.") from error
            place = _place(private, here, copy.path)
            yield CopiedFolder(place, private / "capture", root, here, copy.path, target)
    finally:
        if not target.is_described:
            target.discard()


def _place(private: Path, original: Path, copy: Path) -> Place:
    """Return what the run finds; if the system can restrict it, it cannot write to the original."""
    settings = {"PWD": str(copy), VARIABLE: str(private / "run")}
    if not can_restrict():
        return Place(copy, settings)
    if original.is_relative_to(tempfile.gettempdir()):  # in which it could make no file then
        settings["TMPDIR"] = str(private / "tmp")
        (private / "tmp").mkdir()
    writable = private / "writable.json"
    # Everything next to the folder and next to each folder above it.
    folder = original
    inner = Path(os.path.realpath(folder))
    chain = {str(inner), *map(str, inner.parents)}
    children = [child for above in inner.parents for child in children_of(str(above))]
    around = [child.path for child in children if child.path not in chain and not child.is_symlink()]
    writable.write_text(json.dumps(around), encoding="utf-8")
    package = str(Path(diagnose.__file__).parents[1])
    return Place(copy, settings, [sys.executable, "-I", "-S", "-c", RESTRICTED, package, str(writable)])

"""Writes a capture folder: everything goes into a folder beside it first, and is moved into place when complete.

The place is reserved when the run starts: the folder is made and locked, so that a second run is refused before it
trains for hours. One rank's folder appears at once, by a rename. Several ranks share a folder: each moves its files in,
its ``capture.rank<r>.json`` last, so a rank that has one is complete. If something else stands in the place in the end,
the capture gets a name beside it. If the process is killed, the partial folder stays and can be read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import stat
import sys
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from diagnose.capture.record.samplers import Samplers
from diagnose.capture.record.source_lines import SourceLines
from diagnose.capture.record.window import packed
from diagnose.capture.steps.phases import PhaseTimes
from diagnose.errors import OutputError
from diagnose.model.files import Reservation, cannot_write, move_new, open_private, printable, reason, replace_private
from diagnose.model.launched import RECEIVED_FILE

if TYPE_CHECKING:
    from diagnose.model.capture import CaptureInfo


# A row for every step of the run, recorded or not: when it began, how long it took, and into which phases it went.
#
# A profiler sees a few steps. What comes once in a hundred, an evaluation or a checkpoint, shows only here.

StepState: TypeAlias = Literal["plain", "light", "attribution", "edge"]
"""What was recorded of a step; an edge is one in which the tool started or had just stopped a profiler."""

STATES: tuple[StepState, ...] = ("plain", "light", "attribution", "edge")


class RunLog:
    """Holds the rows until they are written."""

    def __init__(self) -> None:
        self._began = array("q")  # wall clock, unix ns
        self._took = array("q")
        self._state = array("b")
        self._phases = {name: array("q") for name in PhaseTimes._fields}

    def __len__(self) -> int:
        return len(self._began)

    def add(self, ended_ns: int, took_ns: int, state: StepState, phases: PhaseTimes) -> None:
        """Take down a step that is over; the first 200,000 are kept."""
        if len(self) >= 200_000:  # hours of most scripts; 8 numbers a step
            return
        self._began.append(ended_ns - took_ns)
        self._took.append(took_ns)
        self._state.append(STATES.index(state))
        for name, value in zip(PhaseTimes._fields, phases, strict=True):
            self._phases[name].append(value)

    def rows(self, device_ns: Mapping[int, int]) -> dict[str, object]:
        """Return the content of the file; a phase that never came is left out.

        ``device_ns`` are times by the device's clock, by number of the step, which counts from 1.
        """
        by_device = [device_ns.get(i + 1, 0) for i in range(len(self))]
        return {
            **({"device_ns": by_device} if any(by_device) else {}),
            "began_ns": self._began.tolist(),
            "took_ns": self._took.tolist(),
            "state": self._state.tolist(),
            "phases": {name: column.tolist() for name, column in self._phases.items() if any(column)},
        }


# Gives other names to files of the program in a capture that is written: a cell its number, a copy its original.

TEXTS = (".json", ".log", ".txt", ".gz")
ANONYMOUS_CELL = rb"<ipython-input-(\d+)-\w+>"


def rewrite_texts(folder: Path, rewrite: Callable[[bytes], bytes]) -> None:
    """Rewrite every text in the folder, and every packed one."""
    from isal import igzip

    decompress: Any = igzip.decompress
    for path in folder.glob("*"):
        found, is_packed = path.lstat(), path.suffix == ".gz"
        # A trace is smaller than half a gigabyte; a script could leave anything.
        if not stat.S_ISREG(found.st_mode) or found.st_size > 512 << 20 or path.suffix not in TEXTS:
            continue
        data = bytes(decompress(path.read_bytes())) if is_packed else path.read_bytes()
        if (after := rewrite(data)) != data:
            replace_private(path, packed(after) if is_packed else after)


def name_cells(folder: Path) -> None:
    """Call the cells of a notebook by their numbers, as its tracebacks do; outside of one nothing is done."""
    numbers = _numbers()
    if numbers is None:
        return
    names = {file.encode(): b"cell %d" % number for file, number in numbers.items()}
    known = re.compile(b"|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def rewrite(data: bytes) -> bytes:
        data = known.sub(lambda found: names[found[0]], data) if known is not None else data
        return re.sub(ANONYMOUS_CELL, rb"cell \1", data)

    rewrite_texts(folder, rewrite)


def _numbers() -> Mapping[str, int] | None:
    """Return the number of each cell by the name of the file that it is compiled as, None without IPython."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    if shell is None:
        return None
    found = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return found if isinstance(found, dict) else {}


OUR_FILES = (
    "capture.json",
    "capture.rank*.json",
    "rank*.pt.trace.json.gz",
    "rank*.samples.json.gz",
    "rank*.lines.json.gz",
    "rank*.steps.json.gz",
    "rank*.dataflow.json.gz",
    RECEIVED_FILE,
)
SPARE = ".spare"  # a file that is given up when the disk is full, so that the description still fits
TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}  # of a rename: something stands there


class CapturePaths:
    """Where the capture of one process lies: ``target``, while it is written ``partial``, else ``beside``.

    Raises:
        OutputError: the target is no place for a folder.
    """

    def __init__(self, target: Path, *, rank: int, num_ranks: int, pid: int) -> None:
        try:
            if target.is_symlink() and not target.exists():
                raise OutputError(f"{printable(target)} is a link to nothing; remove it, or give another name.")
            self.target = target.resolve()  # the script may change the current folder
            ranked = f".rank{rank}" if num_ranks > 1 else ""
            self.partial = self._near(f"{ranked}.partial-{pid}")
            self.beside = self._near(f"{ranked}-{pid}")
        except (OSError, ValueError) as error:
            raise cannot_write(target, error) from error

    def _near(self, suffix: str) -> Path:
        """Return a name beside the target, in it where it is a mounted disk or what is around it cannot be written."""
        target, around = self.target, self.target.parent
        if target.is_dir() and (
            target == around or not os.access(around, os.W_OK | os.X_OK) or target.stat().st_dev != around.stat().st_dev
        ):
            return target / f"capture{suffix}"
        return target.with_name(f"{target.name}{suffix}")


def unfinished(target: Path) -> list[Path]:
    """Return the partial folders of ``target`` that killed processes have left and that hold something to read."""
    around, start = target.absolute().parent, f"{target.name}."
    try:
        named = [path for path in around.iterdir() if path.name.startswith(start) and ".partial-" in path.name]
        return sorted(path for path in named if any(path.glob("capture*.json")))
    except OSError:
        return []


class CaptureFolder:
    """The folder that one rank's capture will be; ``partial`` is where it is written until then.

    Raises:
        OutputError: something else is there already or another run is about to write it, or it cannot be written.
    """

    def __init__(self, target: Path, *, rank: int, num_ranks: int, force: bool) -> None:
        paths = CapturePaths(target, rank=rank, num_ranks=num_ranks, pid=os.getpid())
        self.target, self.partial, self._beside = paths.target, paths.partial, paths.beside
        self._rank, self._num_ranks, self._force = rank, num_ranks, force
        self._shared = num_ranks > 1
        self._name = f"capture.rank{rank}.json" if self._shared else "capture.json"
        self._home = self.partial  # where the files are at the moment
        try:
            self._check()
            lock = f".rank{rank}.lock" if self._shared else None
            self._reservation = Reservation(self.target, lock_name=lock, must=not force)
        except BlockingIOError as error:
            raise OutputError(
                f"Another run is writing its capture to {printable(target)}; give another name."
            ) from error
        except (OSError, ValueError) as error:
            raise cannot_write(target, error) from error
        try:
            self._check()  # once more: another run may have ended since
            self._set_leftover_aside()
            self.partial.mkdir(mode=0o700)
            with open_private(self.partial / SPARE) as spare:
                # Descriptions are 5 to 50 kB; zeros would take no space on some file systems.
                spare.write(os.urandom(128 * 1024))
        except OSError as error:
            self.discard()
            raise cannot_write(target, error) from error
        except OutputError:
            self.discard()
            raise

    @property
    def has_others(self) -> bool:
        """Return whether ranks that the script started write captures of their own into this one."""
        with contextlib.suppress(OSError):
            return any(each.is_dir() for each in self.partial.iterdir())
        return False

    def _check(self) -> None:
        if _is_something_else(self.target):
            raise OutputError(f"{printable(self.target)} is a file, but a capture is a folder; give another name.")
        if not self._force and self._is_taken(self.target):
            raise OutputError(
                f"{printable(self.target)} is not empty; give another name, or --force to replace the capture in it."
            )

    def _set_leftover_aside(self) -> None:
        """Rename what a killed process of this number left: in containers numbers repeat."""
        if not self._reservation.is_held or not self.partial.exists():
            return
        names = (self.partial.with_name(f"{self.partial.name}.{n}") for n in itertools.count(1))
        self.partial.rename(next(name for name in names if not name.exists()))

    def _is_taken(self, folder: Path) -> bool:
        """Return whether ``folder`` holds anything; of a folder of several ranks, whether it holds this rank."""
        if self._shared:
            return os.path.lexists(folder / self._name)
        return folder.is_dir() and any(path != self.partial for path in folder.iterdir())

    def write_info(self, info: CaptureInfo) -> None:
        """Write or rewrite the description; on a full disk it takes the space that was kept for it.

        Raises:
            OSError: it cannot be written; what was written before is still there.
        """
        text = json.dumps(info.to_json(), indent=1).encode("utf-8", "backslashreplace")
        try:
            replace_private(self._home / self._name, text)
        except OSError:
            self._give_up_spare()
            replace_private(self._home / self._name, text)

    def _give_up_spare(self) -> None:
        with contextlib.suppress(OSError):
            (self.partial / SPARE).unlink()

    @property
    def is_described(self) -> bool:
        """Return whether a description has been written."""
        return (self._home / self._name).is_file()

    def write_rows(self, name: str, rows: dict[str, object]) -> None:
        """Write what the sampler saw, or the source lines, in the place of an earlier file.

        Raises:
            OSError: they cannot be written; earlier ones are still there.
        """
        replace_private(self.partial / name, packed(json.dumps(rows).encode()))

    def publish(self) -> Path:
        """Move everything to its place and return that: ``target``, or a name beside it if something stands there now.

        Raises:
            OutputError: the place cannot be written; the message names where the files are.
        """
        self._give_up_spare()
        try:
            try:
                self._move_to(self.target)
            except FileExistsError:
                self._move_to(self._beside)
                self.target = self._beside
        except OSError as error:
            raise OutputError(
                f"The capture could not be moved to {printable(self.target)}: {reason(error)} "
                f"It is in {printable(self.partial)}."
            ) from error
        finally:
            self._reservation.release()
        self._home = self.target
        return self.target

    def _move_to(self, target: Path) -> None:
        """Move the files.

        Raises:
            FileExistsError: something stands there that may not be replaced; nothing was moved.
            OSError: they cannot be moved; they are where they were.
        """
        ours = target == self._beside or target in self._reservation.made
        if not self._shared and (ours or not os.path.lexists(target)):
            try:
                self.partial.rename(target)  # replaces an empty folder and nothing else
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
            else:
                return
        if not self._force and self._is_taken(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        target.mkdir(mode=0o700, exist_ok=True)
        self._move_into(target)

    def _move_into(self, target: Path) -> None:
        """Move the files, the description last; what they replace is removed when all of them are there."""
        aside = target / self.partial.name.replace("partial-", "replaced-")
        earlier = self._earlier(target) if self._force else []
        files = sorted(self.partial.iterdir(), key=lambda path: path.name == self._name)
        moved: list[tuple[Path, Path]] = []
        try:
            if earlier:
                aside.mkdir(mode=0o700)
            for path in earlier:
                path.rename(aside / path.name)
                moved.append((path, aside / path.name))
            for path in files:
                move_new(path, target / path.name)
                moved.append((path, target / path.name))
        except BaseException:
            for old, new in reversed(moved):
                with contextlib.suppress(OSError):
                    new.rename(old)
            with contextlib.suppress(OSError):
                aside.rmdir()
            raise
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.partial.rmdir()

    def _earlier(self, target: Path) -> list[Path]:
        """Return an earlier capture's files and nothing else; of several ranks each replaces its own."""
        found = []
        for path in [path for pattern in OUR_FILES for path in target.glob(pattern)]:
            numbered = re.search(r"rank(\d+)", path.name)
            rank = int(numbered[1]) if numbered else -1
            if not self._shared or rank == self._rank or (self._rank == 0 and not 0 <= rank < self._num_ranks):
                found.append(path)
        return found

    def discard(self) -> None:
        """Remove the partial folder and give the place up."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self._reservation.release()


def _is_something_else(target: Path) -> bool:
    """Return whether there is something that is no folder; looked at once, as another run may remove its own."""
    try:
        mode = target.lstat().st_mode
    except (OSError, ValueError):  # nothing there, or what stands there shows when it is written to
        return False
    return not stat.S_ISDIR(mode) and not target.is_dir()


# The files of a capture beside its traces: the sampler's rows, the lines that they name, the steps of the run.


def write_rows(
    folder: CaptureFolder, rank: int, samplers: Samplers, lines: SourceLines, steps: Mapping[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Write what the samplers saw and the steps of the run; return the files' names, and why one is missing."""
    names, notes = dict[str, str](), list[str]()

    def write(kind: str, rows: dict[str, object]) -> None:
        folder.write_rows(f"rank{rank}.{kind}.json.gz", rows)
        names[kind] = f"rank{rank}.{kind}.json.gz"

    in_windows, of_run = samplers.in_windows, samplers.of_run
    try:
        if in_windows is not None:
            seen = [*in_windows.lines, *(of_run.lines if of_run is not None else ()), *lines.named]
            write("samples", {**in_windows.rows(), "gc": samplers.gc_runs})
            write("lines", lines.stored(dict.fromkeys(seen)))
            notes += [
                f"{printable(name)} was changed while it ran, so its lines are not quoted." for name in lines.changed
            ]
    except OSError as error:
        notes.append(f"The sampler's rows could not be written: {reason(error)}")
    try:
        write("steps", {**steps, **samplers.run_paths()})
    except OSError as error:
        notes.append(f"The times of the steps could not be written: {reason(error)}")
    return names, notes

"""What a user names, as the files of each rank: trace files, folders, patterns, URLs, a pipe.

Nothing but names is read here, and of databases which processes they hold. What is listed can be read by another
process.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeAlias

from diagnose.errors import InputError
from diagnose.text.masking import mask_text
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.source import STANDARD_INPUT, open_pipe
from diagnose.trace_reader.stored import Piped, Stored, is_database, is_folder, is_url, list_folder, matching_urls

AnyPath: TypeAlias = "str | os.PathLike[str]"

_REPORT = ".nsys-rep"
_DESCRIPTIONS = ("capture.json", "capture.rank*.json")
_TRACES = (
    ("*.pt.trace.json", "*.pt.trace.json.gz", "*.pt.trace.json.zst"),
    ("*.json", "*.json.gz", "*.json.zst"),
)
_DATABASES = (("*.sqlite", "*.db"), (f"*{_REPORT}",))
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")


@dataclass(frozen=True, slots=True)
class Folder:
    """Files beside each other, on a disk or behind a URL."""

    name: str  # as messages have it
    path: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def file(self, name: str) -> Stored:
        """Return the file that a capture's description names, which must lie here: a capture may be anyone's.

        Raises:
            InputError: it is a path or a link that leads out of the folder.
        """
        if name in (".", "..") or {"/", "\\", "\0"} & set(name) or self._leads_out(name):
            raise InputError(
                f"{self.name} names a file outside itself ({name!r}), which was not read. Copy it into the folder."
            )
        return self.listed(name)

    def listed(self, name: str) -> Stored:
        """Return a file that was found here: a link that whoever named the folder put into it may lead anywhere."""
        return Stored(f"{self.path.rstrip('/')}/{name}", f"{self.name.rstrip('/')}/{name}")

    def _leads_out(self, name: str) -> bool:
        if is_url(self.path):
            return False
        return not Path(self.path, name).resolve().is_relative_to(Path(self.path).resolve())


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank: a trace, or the description of a capture and what it names in its folder."""

    folder: Folder | None  # None where the file itself was named
    trace: Stored | Piped | None = None
    description: Stored | None = None
    factor: float = 0.0  # of the length of steps without the profiler, for all ranks of a job alike; 0: not known

    def __str__(self) -> str:
        """Return the name of the file that stands for the rank."""
        return str(self.trace or self.description)


def files_of(rank: RankFiles) -> list[Stored | Piped]:
    """Return every file that reading a rank reads.

    Raises:
        InputError: the description of its capture cannot be read.
    """
    if rank.description is None or rank.folder is None:
        return [rank.trace] if rank.trace is not None else []
    info = read_info(rank.description)
    traces = (info.light_file, info.attribution_file)
    flows = (info.dataflow_file, info.long_step_file)
    names = (*traces, info.samples_file, info.lines_file, info.steps_file, *flows)
    found: list[Stored | Piped] = [rank.description]
    for name in filter(None, names):
        with suppress(InputError):  # one that is missing becomes a note
            file = rank.folder.file(name)
            if is_url(file.path) or os.path.exists(file.path):  # as os.path.isdir below
                found.append(file)
    return found


@dataclass(frozen=True, slots=True)
class Inputs:
    """The ranks that were named."""

    ranks: tuple[RankFiles, ...]
    faults: tuple[str, ...]  # sentences about files that cannot be read


def list_inputs(paths: Sequence[AnyPath]) -> Inputs:
    """List the files of every rank that is named.

    A path is a trace file, a capture folder, a folder with one trace a rank (``*.pt.trace.json``, where there is none
    ``*.json``, each also as .gz or .zst), a pattern, the URL of any of these, or ``-``. On this machine a file may also
    be a report of Nsight Systems, its export as SQLite, or a database of rocprofv3: each process that used a GPU is a
    rank.

    Raises:
        InputError: something does not exist or holds no trace.
    """
    listing = _Listing()
    ranks = tuple(rank for path in paths for rank in listing.named(os.fspath(path)))
    return Inputs(ranks, tuple(listing.faults))


class _Listing:
    """Lists inputs and collects what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def named(self, path: str) -> Iterator[RankFiles]:
        """Yield the ranks of what a user named."""
        if path.partition("?")[0].endswith(_ARCHIVES) and not os.path.isdir(path):
            raise InputError(f"{mask_text(path)} is an archive. Unpack it, and name the folder of its traces.")
        if is_url(path):
            yield from self._behind_url(path)
        elif os.path.isdir(path):  # Path.is_dir raises on odd names, and a Path turns "./-" into "-"
            name = str(Path(path))
            yield from self._in_folder(Folder(name, name), self._files_in(name))
        elif glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(glob.glob(path, recursive=True))  # a pattern may be absolute
            yield from self._each(path, matches)
        else:
            yield from self._file(path)

    def _each(self, pattern: str, matches: Sequence[str]) -> Iterator[RankFiles]:
        if not matches:
            raise InputError(f"{pattern} matches no file. Check the pattern.")
        num_found = 0
        faults: list[str] = []
        for match in matches:
            try:
                found = list(self.named(match))
            except InputError as error:
                faults.append(str(error))
            else:
                num_found += len(found)
                yield from found
        if not num_found:
            raise InputError(faults[0])
        self.faults += faults

    def _behind_url(self, url: str) -> Iterator[RankFiles]:
        if glob.has_magic(url.partition("?")[0]):  # a question mark begins the query of a URL that was signed
            yield from self._each(mask_text(url), matching_urls(url))
        elif is_folder(url):
            yield from self._in_folder(Folder(mask_text(url), url), list_folder(url))
        else:
            yield RankFiles(None, Stored(url, mask_text(url)))

    def _file(self, path: str) -> Iterator[RankFiles]:
        pipe = open_pipe(path)
        if path == STANDARD_INPUT or not stat.S_ISREG(os.fstat(pipe.file.fileno()).st_mode):
            yield RankFiles(None, pipe)
        else:
            pipe.file.close()
            yield from _processes(RankFiles(None, Stored(path, path)))

    def _files_in(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, also behind links; a trace whose link is broken is a fault."""
        with os.scandir(folder) as entries:
            found = {entry.name: _kind(entry) for entry in entries}
        broken = [name for name, kind in found.items() if kind == "broken"]
        for name in _matching(broken, [pattern for patterns in (*_TRACES, *_DATABASES) for pattern in patterns]):
            self.faults.append(f"{folder}/{name} is a broken link, and was left out. Repair or remove it.")
        return [name for name, kind in found.items() if kind == "file"]

    def _in_folder(self, folder: Folder, names: Sequence[str]) -> Iterator[RankFiles]:
        found = list(self._ranks(folder, names))
        if not found:
            if broken := [fault for fault in self.faults if fault.startswith(f"{folder}/")]:
                raise InputError(broken[0])
            raise InputError(
                f"{folder} holds no traces (*.json, also as .gz or .zst; *.sqlite and *.nsys-rep of Nsight Systems; "
                "*.db of rocprofv3). Name a trace file or the folder it is in."
            )
        yield from found

    def _ranks(self, folder: Folder, names: Sequence[str]) -> Iterator[RankFiles]:
        """Yield the captures that are described among files, else the traces."""
        if described := _matching(names, _DESCRIPTIONS):
            yield from (RankFiles(folder, description=folder.file(name)) for name in described)
            return
        for kinds, ranks_of in ((_TRACES, _rank), (_DATABASES, _processes)):
            if matching := next(filter(None, (_matching(names, patterns) for patterns in kinds)), None):
                for name in matching:
                    yield from ranks_of(RankFiles(folder, folder.listed(name)))
                return


def _rank(files: RankFiles) -> Iterator[RankFiles]:
    """Yield the one rank of a trace, which is not opened for that: a job has thousands."""
    yield files


def _processes(files: RankFiles) -> Iterator[RankFiles]:
    """Yield the ranks of a file: a database may hold several processes."""
    stored = files.trace
    if isinstance(stored, Stored) and stored.path.endswith(_REPORT) and not is_url(stored.path):
        from diagnose.trace_reader.nsight import sqlite_of

        stored = replace(stored, path=sqlite_of(stored.path))
        files = replace(files, trace=stored)
    if not isinstance(stored, Stored) or is_url(stored.path) or not is_database(stored.path):
        yield files
        return
    from diagnose.trace_reader.databases import processes_of

    processes = processes_of(stored.path, stored.name)
    if len(processes) < 2:
        yield files
        return
    for process, pid in processes.items():
        yield replace(files, trace=replace(stored, name=f"{stored.name} (process {pid})", process=process))


def _kind(entry: os.DirEntry[str]) -> Literal["file", "broken", ""]:
    """Return what an entry of a folder is, links followed: broken where one leads to neither a file nor a folder."""
    try:
        if entry.is_file():
            return "file"
        return "broken" if entry.is_symlink() and not entry.is_dir() else ""
    except OSError:  # links in a circle, or into a folder that may not be entered
        return "broken"


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))

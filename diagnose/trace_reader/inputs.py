"""What a user names, as the files of each rank: trace files, folders, archives, patterns, URLs, a pipe.

Nothing but names is read here. What is listed can be read by another process.
"""

from __future__ import annotations

import glob
import io
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal, TypeAlias, cast

from diagnose.errors import InputError
from diagnose.model.files import cannot_write
from diagnose.text.masking import mask_text
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.source import STANDARD_INPUT, Source, open_decoded, open_pipe, open_source
from diagnose.trace_reader.stored import (
    DEFLATED,
    Piped,
    RemoteFile,
    Stored,
    is_folder,
    is_url,
    list_folder,
    matching_urls,
    open_file,
    open_url,
)

if TYPE_CHECKING:
    import tarfile

__all__ = [
    "ARCHIVES", "FIRST_BYTES", "AnyPath", "Folder", "Inputs", "RankFiles", "files_of", "is_archive", "keep_stream",
    "list_archive", "list_inputs",
]  # fmt: skip

# What is in an archive: tar, compressed or not, and zip. Nothing is unpacked; members are read where they lie.
#
# The lists of files in archives are not to be trusted: names lead nowhere, since no file is made of them, links are
# left out, and headers are read with a limit. A compressed tar cannot be read at a place, so it is decompressed once,
# into a file without a name, which is gone with the process whatever happens to it.

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
FIRST_BYTES = 4096  # of a file that show whether it is an archive: enough compressed text for a tar's first header

_Seekable: TypeAlias = "FileIO | RemoteFile"

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_MAX_MEMBERS = 1_000_000
_MAX_HEADER_BYTES = 1 << 20  # of a member in a tar: its name, and what is kept beside it
_READ_BYTES = 1 << 18
_METHODS = (0, DEFLATED)
_IS_ENCRYPTED = 1  # a flag of a zip's member


def is_archive(first: bytes, name: str) -> bool:
    """Return whether a file that begins with these bytes is a zip or a tar, compressed or not."""
    return first.startswith(_ZIP_MAGIC) or _is_tar(first) or _is_tar(_decompressed(first, name))


def _is_tar(first: bytes) -> bool:
    return first.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)


def _decompressed(first: bytes, name: str) -> bytes:
    """Return the beginning of what compressed bytes hold, the bytes themselves where they are not compressed."""
    text = bytearray(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    with open_decoded(io.BytesIO(first), name) as source:
        return bytes(text[: source.readinto(memoryview(text))])


def list_archive(archive: Stored, keep: ExitStack) -> tuple[list[Stored], list[str]]:
    """Return the members of an archive as files, and sentences about what of it cannot be read.

    A compressed tar is decompressed into a file that is there until ``keep`` is closed.

    Raises:
        InputError: it is no archive, damaged before its first member, or cannot be read.
    """
    with closing(_open(archive.path)) as file:
        first = _first(file, archive.name)
        if first.startswith(_ZIP_MAGIC):
            return _list_zip(file, archive)
        if _is_tar(first) or not _is_tar(_decompressed(first, archive.name)):
            return _list_tar(file, archive)
    with open_source(archive) as source:
        unpacked = _kept(source, archive.name, keep)
        faults = [f"{archive.name} is cut off: {source.fault}."] if source.fault else []
    with closing(open_file(unpacked.path)) as file:
        members, more = _list_tar(file, unpacked)
    return members, faults or more


def keep_stream(pipe: Piped, keep: ExitStack) -> Stored:
    """Return what comes out of a pipe as a file that is there until ``keep`` is closed.

    Raises:
        OutputError: there is no space for it.
    """
    with open_decoded(pipe.file, pipe.name, pipe.first, raw=True) as source:
        return _kept(source, pipe.name, keep)


def _kept(source: Source, name: str, keep: ExitStack) -> Stored:
    """Copy a stream into a file without a name, which other processes of this user reach through this one."""
    import tempfile

    chunk = memoryview(bytearray(_READ_BYTES))
    try:
        file = keep.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115  # it outlives this function
        while count := source.readinto(chunk):
            file.write(chunk[:count])
    except OSError as error:
        raise cannot_write(f"a temporary file for {name}", error) from None
    return Stored(f"/proc/{os.getpid()}/fd/{file.fileno()}", name)


def _open(path: str) -> _Seekable:
    return open_url(path) if is_url(path) else open_file(path)


def _first(file: _Seekable, name: str) -> bytes:
    try:
        first = file.read(FIRST_BYTES)
        file.seek(0)
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}). Name a trace file.") from None
    return first


def _list_zip(file: _Seekable, archive: Stored) -> tuple[list[Stored], list[str]]:
    import zipfile

    damage = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error, OverflowError)
    try:
        with zipfile.ZipFile(cast("IO[bytes]", file)) as found:
            entries = [entry for entry in found.infolist() if not entry.is_dir()]
    except damage as error:
        raise InputError(f"{archive.name} is a damaged zip ({error}). Copy or make it again.") from None
    members, faults = [], []
    for entry in entries[:_MAX_MEMBERS]:
        name = _member_name(archive.name, entry.filename)
        if entry.flag_bits & _IS_ENCRYPTED or entry.compress_type not in _METHODS:
            how = "encrypted" if entry.flag_bits & _IS_ENCRYPTED else f"compressed by method {entry.compress_type}"
            faults.append(f"{name} was left out: it is {how}. Unpack it, or make the zip with deflate.")
            continue
        members.append(
            Stored(archive.path, name, entry.header_offset, entry.compress_size, entry.compress_type, entry.CRC)
        )
    return members, faults


def _list_tar(file: _Seekable, archive: Stored) -> tuple[list[Stored], list[str]]:
    import tarfile

    members: list[Stored] = []
    try:
        for member in _tar_members(file):
            if member.isreg() and not member.issparse():
                name = _member_name(archive.name, member.name)
                members.append(Stored(archive.path, name, member.offset_data, member.size))
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:
        if not members:
            raise InputError(f"{archive.name} is a damaged tar ({error}). Copy or make it again.") from None
        return members, [f"{archive.name} is cut off or damaged behind {members[-1].name} ({error})."]
    return members, []


def _tar_members(file: _Seekable) -> Iterator[tarfile.TarInfo]:
    import tarfile

    with tarfile.open(fileobj=_Headers(file), mode="r:") as tar:  # type: ignore[call-overload]  # it reads and seeks
        for _ in range(_MAX_MEMBERS):
            member = tar.next()
            if member is None:
                return
            yield member
            tar.members.clear()  # which would keep every header


class _Headers:
    """A file of which headers are read, and no header is longer than a name can be."""

    def __init__(self, file: _Seekable) -> None:
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, lambda: None

    def read(self, count: int) -> bytes:
        if count > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {count:,} bytes")
        return self._file.read(count)


def _member_name(archive: str, member: str) -> str:
    return f"{archive}/{member}"


AnyPath: TypeAlias = "str | os.PathLike[str]"

_DESCRIPTIONS = ("capture.json", "capture.rank*.json")
_COMPRESSED = ("", ".gz", ".zst")
_TRACES = (
    tuple(f"*.pt.trace.json{suffix}" for suffix in (*_COMPRESSED, ".zip")),
    tuple(f"*.json{suffix}" for suffix in (*_COMPRESSED, ".zip")),
    tuple(f"*{suffix}" for suffix in ARCHIVES),
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Files beside each other: on a disk, behind a URL, or in an archive."""

    name: str  # as messages have it
    path: str = ""  # "" in an archive
    members: Mapping[str, Stored] = field(default_factory=dict)  # of an archive

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def file(self, name: str) -> Stored:
        """Return the file that a capture's description names, which must lie here: a capture may be anyone's.

        Raises:
            InputError: it is a path or a link that leads out of the folder, or is not in the archive.
        """
        if name in (".", "..") or {"/", "\\", "\0"} & set(name) or self._leads_out(name):
            raise InputError(
                f"{self.name} names a file outside itself ({name!r}), which was not read. Copy it into the folder."
            )
        if not self.path and name not in self.members:
            raise InputError(f"{self.name}/{name} does not exist. Check the path.")
        return self.listed(name)

    def listed(self, name: str) -> Stored:
        """Return a file that was found here: a link that whoever named the folder put into it may lead anywhere."""
        if self.path:
            return Stored(f"{self.path.rstrip('/')}/{name}", f"{self.name.rstrip('/')}/{name}")
        return self.members[name]

    def of_rank(self, description: str) -> Folder:
        """Return the folder without other ranks' files, which in an archive would all be handed on with each rank."""
        begin = f"{description.removeprefix('capture.').removesuffix('.json')}."
        mine = {name: file for name, file in self.members.items() if name.startswith(begin)}
        return replace(self, members=mine) if mine else self

    def _leads_out(self, name: str) -> bool:
        if not self.path or is_url(self.path):
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
    names = (*traces, info.samples_file, info.lines_file, info.steps_file, info.dataflow_file)
    found: list[Stored | Piped] = [rank.description]
    for name in filter(None, names):
        with suppress(InputError):  # one that is missing becomes a note
            file = rank.folder.file(name)
            if is_url(file.path) or os.path.exists(file.path):  # as os.path.isdir below
                found.append(file)
    return found


@dataclass(frozen=True, slots=True)
class Inputs:
    """The ranks that were named; what of them lies in temporary files is there until the block ends."""

    ranks: tuple[RankFiles, ...]
    faults: tuple[str, ...]  # sentences about archives that cannot be read to their end
    _keep: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep.close()


def list_inputs(paths: Sequence[AnyPath]) -> Inputs:
    """List the files of every rank that is named.

    A path is a trace file, a capture folder, a folder with one trace a rank (``*.pt.trace.json``, where there is none
    ``*.json``, each also as .gz, .zst or .zip), an archive of such, a pattern, the URL of any of these, or ``-``.

    Raises:
        InputError: something does not exist or holds no trace.
    """
    with ExitStack() as keep:
        listing = _Listing(keep)
        ranks = tuple(rank for path in paths for rank in listing.named(os.fspath(path)))
        return Inputs(ranks, tuple(listing.faults), keep.pop_all())
    raise AssertionError("an ExitStack without callbacks swallows nothing")


class _Listing:
    """Lists inputs and collects what is wrong with their archives."""

    def __init__(self, keep: ExitStack) -> None:
        self._keep = keep
        self.faults: list[str] = []

    def named(self, path: str) -> Iterator[RankFiles]:
        """Yield the ranks of what a user named."""
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
        elif url.partition("?")[0].endswith(ARCHIVES):
            yield from self._archive(Stored(url, mask_text(url)))
        elif is_folder(url):
            yield from self._in_folder(Folder(mask_text(url), url), list_folder(url))
        else:
            yield RankFiles(None, Stored(url, mask_text(url)))

    def _file(self, path: str) -> Iterator[RankFiles]:
        pipe = open_pipe(path, FIRST_BYTES)
        is_file = path != STANDARD_INPUT and stat.S_ISREG(os.fstat(pipe.file.fileno()).st_mode)
        if is_file:
            pipe.file.close()
        if not is_archive(pipe.first, pipe.name):
            yield RankFiles(None, Stored(path, path) if is_file else pipe)
        else:
            yield from self._archive(Stored(path, path) if is_file else keep_stream(pipe, self._keep))

    def _files_in(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, also behind links; a trace whose link is broken is a fault."""
        with os.scandir(folder) as entries:
            found = {entry.name: _kind(entry) for entry in entries}
        broken = [name for name, kind in found.items() if kind == "broken"]
        for name in _matching(broken, [pattern for patterns in _TRACES for pattern in patterns]):
            self.faults.append(f"{folder}/{name} is a link that leads to no file, and was left out. Mend or remove it.")
        return [name for name, kind in found.items() if kind == "file"]

    def _in_folder(self, folder: Folder, names: Sequence[str]) -> Iterator[RankFiles]:
        found = list(self._ranks(folder, names))
        if not found:
            if broken := [fault for fault in self.faults if fault.startswith(f"{folder}/")]:
                raise InputError(broken[0])
            raise InputError(
                f"{folder} holds no traces (*.json, also as .gz, .zst, .zip or in a .tar). "
                "Name a trace file or the folder it is in."
            )
        yield from found

    def _ranks(self, folder: Folder, names: Sequence[str]) -> Iterator[RankFiles]:
        """Yield the captures that are described among files, else the traces, else what is in archives."""
        if described := _matching(names, _DESCRIPTIONS):
            yield from (RankFiles(folder.of_rank(name), description=folder.file(name)) for name in described)
            return
        for name in next(filter(None, (_matching(names, patterns) for patterns in _TRACES)), []):
            if name.endswith(ARCHIVES):
                yield from self._archive(folder.listed(name))
            else:
                yield RankFiles(Folder(folder.name), folder.listed(name))

    def _archive(self, archive: Stored) -> Iterator[RankFiles]:
        members, faults = list_archive(archive, self._keep)
        self.faults += faults
        folders: dict[str, dict[str, Stored]] = {}
        for member in members:
            parent, _, name = member.name.rpartition("/")
            if not name.startswith("."):  # what macOS keeps beside each file
                folders.setdefault(parent, {})[name] = member
        found = [
            rank
            for name, files in sorted(folders.items())
            for rank in self._ranks(Folder(name, members=files), [n for n in files if not n.endswith(ARCHIVES)])
        ]
        if not found and faults:
            raise InputError(faults[0])
        if not found:
            raise InputError(f"{archive.name} holds no traces (*.json, also as .gz or .zst). Name a trace file.")
        yield from found


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

"""What is in an archive: tar, compressed or not, and zip. Nothing is unpacked; members are read where they lie.

The lists of files in archives are not to be trusted: names lead nowhere, since no file is made of them, links are left
out, and headers are read with a limit. A compressed tar cannot be read at a place, so it is decompressed once, into a
file without a name, which is gone with the process whatever happens to it.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from io import FileIO
from typing import IO, TYPE_CHECKING, TypeAlias, cast

from diagnose.errors import InputError
from diagnose.model.files import cannot_write
from diagnose.trace_reader.source import Source, open_decoded, open_source
from diagnose.trace_reader.stored import DEFLATED, Piped, RemoteFile, Stored, is_url, open_file, open_url

if TYPE_CHECKING:
    import tarfile

__all__ = ["ARCHIVES", "FIRST_BYTES", "is_archive", "keep_stream", "list_archive"]

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
FIRST_BYTES = 4096  # of a file that show whether it is an archive: enough compressed text for a tar's first header

_Seekable: TypeAlias = "FileIO | RemoteFile"

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_MAX_MEMBERS = 1_000_000
_MAX_HEADER_BYTES = 1 << 20  # of a member in a tar: its name, and what is kept beside it
_CHUNK = 1 << 18
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

    chunk = memoryview(bytearray(_CHUNK))
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

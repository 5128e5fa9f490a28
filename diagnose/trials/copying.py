"""Copies files as cheaply as the file system allows, and removes folders that a script has made hard to remove."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["children_of", "clone_data", "copy_file", "remove_tree", "shares_blocks"]

FICLONE = 0x40049409  # of linux/fs.h: the two files share their blocks until one of them is written
CHUNK_BYTES = 8 << 20
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a name that has become a FIFO must not block


def copy_file(source: str, target: Path) -> None:
    """Make ``target`` a file of its own with the content, mode and times of ``source``; it must not exist.

    Raises:
        OSError: the source is not a regular file any more, cannot be read, or the disk is full.
    """
    with _opened(source) as reading:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if not clone_data(reading, writing):
                _copy_data(reading, writing)
        finally:
            os.close(writing)
    shutil.copystat(source, target)


def clone_data(reading: int, writing: int) -> bool:
    """Let the second file share the blocks of the first (reflink); False where the file system cannot."""
    try:
        import fcntl

        fcntl.ioctl(writing, FICLONE, reading)
    except (ImportError, OSError):
        return False
    return True


def shares_blocks(source: str, folder: Path) -> bool:
    """Return whether copies of ``source`` in ``folder`` take no space until they are written."""
    probe = folder / ".reflink-probe"
    try:
        with _opened(source) as reading:
            writing = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                return clone_data(reading, writing)
            finally:
                os.close(writing)
                probe.unlink()
    except OSError:
        return False


def remove_tree(path: Path) -> None:
    """Remove a folder or a file, never following a link; also folders without permission to change them."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        _make_removable(path)
        shutil.rmtree(path, ignore_errors=True)


def _make_removable(folder: Path) -> None:
    """Give the owner every permission on the folders below; what belongs to others stays as it is."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        with contextlib.suppress(OSError):
            if here.lstat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                here.chmod(0o700)
            with os.scandir(here) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


@contextlib.contextmanager
def _opened(source: str) -> Iterator[int]:
    descriptor = os.open(source, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{source} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_data(reading: int, writing: int) -> None:
    """Copy within the kernel where it can, else through memory; holes of a sparse file stay holes."""
    size = os.fstat(reading).st_size
    offset = 0
    while offset < size:
        begin, end = _next_data(reading, offset, size)
        while begin < end:
            copied = _copy_chunk(reading, writing, begin, min(end - begin, CHUNK_BYTES))
            if not copied:
                break  # the file has become shorter meanwhile
            begin += copied
        offset = end
    os.ftruncate(writing, size)


def _next_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """Return where the next bytes that are no hole begin and end."""
    if not hasattr(os, "SEEK_DATA"):
        return offset, size
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        return begin, min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (offset, size)  # a hole up to the end, or no support


def _copy_chunk(reading: int, writing: int, offset: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):  # two file systems, or one that cannot
            copied = os.copy_file_range(reading, writing, count, offset, offset)
            if copied:
                return copied
    data = os.pread(reading, count, offset)
    done = 0
    while done < len(data):
        done += os.pwrite(writing, data[done:], offset + done)
    return len(data)


def children_of(folder: str) -> list[os.DirEntry[str]]:
    """Return what a folder holds by name, nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda child: child.name)
    except OSError:
        return []

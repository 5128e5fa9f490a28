"""What is computed of one rank from its files alone, from the cache where it was computed before.

These are the functions that run in other processes and on other machines: files in, bytes out. What they need is
imported when something has to be computed, since a result from the cache needs none of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import msgspec
from isal import isal_zlib

from diagnose.errors import InputError, is_debugging
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import replace_private
from diagnose.model.plugins import installed
from diagnose.model.serialization import pack, unpack, without_collector
from diagnose.text.plain_text import middle, one_line
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.inputs import RankFiles, files_of
from diagnose.trace_reader.stored import Piped, Stored, is_url, open_bytes, version_of

if TYPE_CHECKING:
    from hashlib import blake2b

    from diagnose.dataflow import Analyses
    from diagnose.model.capture import Capture, CaptureInfo
    from diagnose.tables.program import Program

__all__ = [
    "NOTHING_KEPT",
    "PROFILE",
    "Cache",
    "Outcome",
    "Work",
    "attempt",
    "both",
    "default_cache",
    "describe",
    "diagnosis_of",
    "examination",
    "factor_of_files",
    "found_before",
    "packed_both",
    "packed_examination",
    "packed_profile",
    "sum_of",
    "unpack_both",
    "unpack_examination",
]

# Results that were computed before, found again by the content of the files that they rest on.
#
# A key is made of the bytes of every file of a rank, of what was asked, and of this program's own files: a changed
# trace, option or version has another key, so nothing has to be invalidated. Entries lie in the user's cache folder,
# readable by the user alone. Each is written beside its place and renamed, so any number of processes may read and
# write at once. One that is damaged counts as absent. Where the folder cannot be used, everything is computed, and
# nothing else changes.

NO_CACHE = "DIAGNOSE_NO_CACHE"  # the environment variable that turns the cache off
FOLDER = "diagnose"
MAX_CACHE_BYTES = 256 << 20  # of all entries together
MAX_CACHE_ENTRIES = 50_000
MAX_ENTRY_BYTES = 16 << 20  # a result with its charts has some hundred kB
TIDY_AT = ("00", "01", "02", "03")  # begins of a key: every 64th result that is stored looks whether all fit
LEFT_SHARE = 0.8  # of the bounds, that is left when one is passed: the next writer need not tidy up again

_SUM_BYTES, _KEY_BYTES = 16, 20
_HASHED_BYTES = 1 << 20
# The checksum of each block is hashed, not each byte: 10 to 20 times as fast as a hash of cryptography, which nobody
# needs here. A change within one block is missed in one of 4 billion cases, one over several blocks never.
_SUMMED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of results; without one nothing is kept, and nothing has a key."""

    folder: Path | None = None
    most_bytes: int = MAX_CACHE_BYTES

    def get(self, key: str | None) -> bytes | None:
        """Return what was stored under a key, None where nothing is or it is damaged."""
        if self.folder is None or key is None:
            return None
        path = self.folder / key
        try:
            entry = path.read_bytes()
            if sum_of(entry[_SUM_BYTES:]) != entry[:_SUM_BYTES]:
                path.unlink()
                return None
            os.utime(path)  # the entries that were not used for longest go first
        except OSError:
            return None
        return entry[_SUM_BYTES:]

    def put(self, key: str | None, data: bytes) -> None:
        """Store a result; where that is not possible, it is not stored."""
        if self.folder is None or key is None:
            return
        if len(data) <= MAX_ENTRY_BYTES:
            with contextlib.suppress(OSError):
                replace_private(self.folder / key, sum_of(data) + data)
        if key.startswith(TIDY_AT):
            self.trim()

    def trim(self) -> None:
        """Remove the entries that were not used for longest, where all together are too large."""
        with contextlib.suppress(OSError):
            entries = sorted(_entries(self.folder or Path()), reverse=True)
            size = sum(num_bytes for _, num_bytes, _ in entries)
            if size <= self.most_bytes and len(entries) <= MAX_CACHE_ENTRIES:
                return
            kept = 0
            for position, (_, num_bytes, path) in enumerate(entries):
                kept += num_bytes
                if kept > LEFT_SHARE * self.most_bytes or position >= LEFT_SHARE * MAX_CACHE_ENTRIES:
                    path.unlink(missing_ok=True)

    def key(self, what: str, *files: RankFiles) -> str | None:
        """Return the key of a result of these files; None without a folder, or where one can be read only once.

        Raises:
            InputError: a file cannot be read.
        """
        if self.folder is None:
            return None
        parts = [_program(), what]
        for rank in files:
            for file in files_of(rank):
                digest = None if isinstance(file, Piped) else digest_of(file)
                if digest is None:
                    return None
                parts += [str(file), digest]
        return _hash("\0".join(parts).encode("utf-8", "surrogateescape"), _KEY_BYTES).hexdigest()


NOTHING_KEPT = Cache()


def default_cache() -> Cache:
    """Return the user's cache, which keeps nothing where it is turned off or its folder is not the user's alone."""
    if os.environ.get(NO_CACHE) or is_debugging():
        return Cache()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".cache") / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):
        return Cache()
    is_safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return Cache(folder if is_safe else None)


def digest_of(file: Stored) -> str | None:
    """Return what stands for the bytes of a file; None for a URL of a store that keeps no such thing.

    Raises:
        InputError: it cannot be read.
    """
    if is_url(file.path):
        return version_of(file.path)
    digest, buffer = _hash(), memoryview(bytearray(_HASHED_BYTES))
    with contextlib.closing(open_bytes(file)) as stream:
        try:
            while count := stream.readinto(buffer):
                for begin in range(0, count, _SUMMED_BYTES):
                    block = buffer[begin : min(begin + _SUMMED_BYTES, count)]
                    digest.update(b"%d %d " % (len(block), isal_zlib.crc32(block)))
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error.strerror}). Name a trace file.") from None
    return digest.hexdigest()


def sum_of(data: bytes) -> bytes:
    """Return what stands for these bytes."""
    return _hash(data).digest()


def _hash(data: bytes = b"", num_bytes: int = _SUM_BYTES) -> blake2b:
    import hashlib  # brings OpenSSL: 3.5 MB that an answer without the cache does not need

    return hashlib.blake2b(data, digest_size=num_bytes)


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(FileNotFoundError):  # another process tidies up as well
                state = entry.stat(follow_symlinks=False)
                yield state.st_mtime, state.st_size, folder / entry.name


@once
def _program() -> str:
    """Return what stands for this program: sizes and times of its files, since a checkout changes between versions."""
    import diagnose

    digest = _hash(diagnose.__version__.encode())
    for name, size, changed in sorted(_sources(str(Path(diagnose.__file__).parent))):
        digest.update(os.fsencode(f"{name} {size} {changed}\n"))
    for plugin in installed("diagnose.analyzers", "diagnose.changes"):
        digest.update(plugin.encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield entry.path, state.st_size, state.st_mtime_ns


Work: TypeAlias = Callable[[RankFiles], bytes]

PROFILE = "profile"  # what a summary is called in the cache


class Outcome(NamedTuple):
    """What became of one rank."""

    data: bytes  # b"" where it failed
    failure: str = ""  # why, one sentence


def attempt(work: Work, files: RankFiles) -> Outcome:
    """Do the work for one rank; what is wrong with its files is an outcome too, and no reason to stop the others."""
    try:
        with without_collector():  # each of its rounds would walk all modules, and a rank's tables go without it
            return Outcome(work(files))
    except InputError as error:
        return Outcome(b"", str(error))
    except MemoryError:
        return Outcome(b"", f"{files} needs more memory than there is. Give --max-memory more, or --workers less.")
    except Exception as error:
        if is_debugging():
            raise
        return Outcome(b"", f"{files} could not be analysed ({describe(error)}), and was left out.")


def describe(error: BaseException) -> str:
    """Return type and text of an error on one short line."""
    return middle(one_line(f"{type(error).__name__}: {error}".rstrip(": ")), 300)


def packed_profile(files: RankFiles, cache: Cache = NOTHING_KEPT) -> bytes:
    """Return what the comparison of ranks needs of one rank.

    Raises:
        InputError: its files cannot be read.
    """
    return _found_or_made(files, cache, PROFILE, lambda files: _packed_profile(_read(files), files))


def packed_examination(files: RankFiles, cache: Cache = NOTHING_KEPT, *, draw: bool) -> bytes:
    """Return the whole examination of a rank among others, and what is known of its program.

    Raises:
        InputError: its files cannot be read.
    """
    name = examination(draw=draw)
    return _found_or_made(files, cache, name, lambda files: _packed_examination(_read(files), draw=draw))


def packed_both(files: RankFiles, cache: Cache = NOTHING_KEPT, *, draw: bool) -> bytes:
    """Return the summary and the examination of a rank, for which its files are read once.

    Raises:
        InputError: its files cannot be read.
    """

    def make(files: RankFiles) -> bytes:
        from diagnose.pipeline.find import analysed

        capture = _read(files)
        analyses = analysed(capture)
        profile = _packed_profile(capture, files, analyses)
        return msgspec.msgpack.encode((profile, _packed_examination(capture, analyses, draw=draw)))

    return _found_or_made(files, cache, both(draw=draw), make)


def unpack_both(packed: bytes) -> tuple[bytes, bytes]:
    """Return the summary and the examination that ``packed_both`` packed."""
    return msgspec.msgpack.decode(packed, type=tuple[bytes, bytes])


def both(*, draw: bool) -> str:
    """Return what a summary and an examination in one are called in the cache."""
    return f"both {draw}"


def examination(*, draw: bool) -> str:
    """Return what an examination is called in the cache."""
    return f"examination {draw}"


def found_before(files: RankFiles, cache: Cache, what: str) -> bytes | None:
    """Return a result from the cache, None where it is not there or its files cannot be read."""
    with suppress(InputError):
        return cache.get(_key(cache, what, files))
    return None


def unpack_examination(packed: bytes) -> tuple[Diagnosis, Program]:
    """Return what ``packed_examination`` packed."""
    from diagnose.tables.program import Program

    return cast("tuple[Diagnosis, Program]", unpack(packed, Program))


def diagnosis_of(files: RankFiles, cache: Cache = NOTHING_KEPT, *, draw: bool, processes: int = 1) -> Diagnosis:
    """Return the diagnosis of a rank that is alone; a large trace is read by several ``processes``.

    Raises:
        InputError: its files cannot be read.
    """
    key = cache.key(f"diagnosis {draw}", files)
    if (found := cache.get(key)) is not None:
        with suppress(ValueError):
            return cast("Diagnosis", unpack(found))
    from diagnose.trace_reader.folders import read_rank

    # What a diagnosis needs is imported meanwhile, which takes as long as reading 16 MB.
    capture = read_rank(files, processes, partial(import_module, "diagnose.pipeline.rank"))
    from diagnose.pipeline.rank import analyze_rank

    made = analyze_rank(capture, draw=draw)
    if key is not None:
        with suppress(TypeError, OverflowError):  # it is only not kept
            cache.put(key, pack(made))
    return made


def factor_of_files(ranks: Iterable[RankFiles]) -> float:
    """Return the factor of a job's steps without the profiler, from the descriptions of its captures; 0 if unknown."""
    from diagnose.pipeline.true_step import factor_of_job

    infos: list[CaptureInfo] = []
    for files in ranks:
        with suppress(InputError):  # its rank is left out
            infos += [read_info(files.description)] if files.description is not None else []
    return factor_of_job(infos)


def _read(files: RankFiles) -> Capture:
    """Return a rank's capture, scaled with those of its job to steps without the profiler."""
    from diagnose.trace_reader.folders import read_rank

    capture = read_rank(files)
    if not files.factor:
        return capture
    from diagnose.pipeline.true_step import scaled
    from diagnose.tables.stages import begin

    return scaled(begin(capture, capture.trace), files.factor)


def _packed_examination(capture: Capture, analyses: Analyses | None = None, *, draw: bool) -> bytes:
    from diagnose.pipeline.rank import examine_rank
    from diagnose.tables.program import Program

    return pack(examine_rank(capture, analyses, draw=draw), Program)


def _packed_profile(capture: Capture, files: RankFiles, analyses: Analyses | None = None) -> bytes:
    from diagnose.pipeline.rank import profile_rank

    return replace(profile_rank(capture, analyses), factor=files.factor).to_bytes()


def _key(cache: Cache, what: str, files: RankFiles) -> str | None:
    return cache.key(f"{what} {files.factor}", files)


def _found_or_made(files: RankFiles, cache: Cache, what: str, make: Work) -> bytes:
    key = _key(cache, what, files)
    found = cache.get(key)
    if found is None:
        found = make(files)
        cache.put(key, found)
    return found

"""What is computed of one rank from its files only, from the cache if it was computed before.

These are the functions that run in other processes: files in, bytes out. What they need is imported when something has
to be computed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache as once
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import msgspec

from diagnose.errors import InputError, is_debugging
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import replace_private
from diagnose.model.plugins import installed
from diagnose.model.serialization import pack, unpack, without_collector
from diagnose.text.plain_text import middle, one_line
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.inputs import RankFiles, files_of
from diagnose.trace_reader.stored import Stored, is_url, version_of

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.capture import Capture, CaptureInfo
    from diagnose.tables.program import Program


class Cache(NamedTuple):
    """A folder of results of earlier runs; without one nothing is kept.

    A result is found by its files with their sizes and times, by what was asked, and by this program's own files: what
    has changed has another key. Entries are written whole or not at all; what cannot be read or written is computed.
    """

    folder: Path | None = None

    def get(self, what: str, files: RankFiles) -> bytes | None:
        """Return what was stored, None if nothing was."""
        with suppress(OSError, InputError):
            if (entry := self._entry(what, files)) is not None:
                data = entry.read_bytes()
                os.utime(entry)  # the entries that were not used for longest go first
                return data or None  # a machine that stopped may have left an empty one
        return None

    def put(self, what: str, files: RankFiles, data: bytes) -> None:
        """Store a result."""
        with suppress(OSError, InputError):
            if (entry := self._entry(what, files)) is not None:
                replace_private(entry, data)

    def _entry(self, what: str, files: RankFiles) -> Path | None:
        """Return the file of a result; None if a file can be read only once, or a store keeps no version of it."""
        if self.folder is None:
            return None
        parts: list[object] = [_program(), what, files.factor]
        for file in files_of(files):
            if not isinstance(file, Stored):
                return None
            if is_url(file.path):
                version: object = version_of(file.path)
            else:
                state = Path(file.path).stat()
                version = state.st_size, state.st_mtime_ns
            if version is None:
                return None
            parts += [file, version]
        import hashlib  # brings OpenSSL: 3.5 MB that an answer without the cache does not need

        return self.folder / hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


NOTHING_KEPT = Cache()


def default_cache() -> Cache:
    """Return the user's cache, which keeps nothing if it is turned off or its folder is not the user's alone."""
    if os.environ.get("DIAGNOSE_NO_CACHE") or is_debugging():
        return NOTHING_KEPT
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "diagnose"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return NOTHING_KEPT
        _trim(folder)
    except (OSError, RuntimeError):
        return NOTHING_KEPT
    return Cache(folder)


def _trim(folder: Path) -> None:
    """Remove the older half of the entries if all together are too large."""
    entries = sorted((state.st_mtime, state.st_size, path) for path in folder.iterdir() for state in [path.lstat()])
    # A result with its charts has some hundred kB.
    if sum(size for _, size, _ in entries) > (256 << 20):
        for _, _, path in entries[: len(entries) // 2 + 1]:
            path.unlink(missing_ok=True)


@once
def _program() -> str:
    """Return what stands for this program and its plug-ins: a checkout changes between versions."""
    import diagnose

    folders = os.walk(Path(diagnose.__file__).parent, followlinks=True)
    files = [Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".py")]
    last = max(file.stat().st_mtime_ns for file in files)
    return repr((diagnose.__version__, len(files), last, installed("diagnose.analyzers", "diagnose.changes")))


Work: TypeAlias = Callable[[RankFiles], bytes]


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
        return Outcome(b"", f"{files} needs more memory than there is. Give --workers less.")
    except Exception as error:
        if is_debugging():
            raise
        return Outcome(b"", f"{files} could not be analysed ({describe(error)}), and was left out.")


def describe(error: Exception) -> str:
    """Return an exception in one line."""
    return middle(one_line(f"{type(error).__name__}: {error}".rstrip(": ")), 300)


def packed_profile(files: RankFiles, *, cache: Cache = NOTHING_KEPT) -> bytes:
    """Return what the comparison of ranks needs of one rank.

    Raises:
        InputError: its files cannot be read.
    """
    return _kept(cache, "profile", files, lambda: _packed_profile(_read(files), files))


def packed_examination(files: RankFiles, *, cache: Cache = NOTHING_KEPT, draw: bool) -> bytes:
    """Return the whole examination of a rank among others, and what is known of its program.

    Raises:
        InputError: its files cannot be read.
    """
    return _kept(cache, f"examination {draw}", files, lambda: _packed_examination(_read(files), draw=draw))


def packed_both(files: RankFiles, *, cache: Cache = NOTHING_KEPT, draw: bool) -> bytes:
    """Return the summary and the examination of a rank, for which its files are read once.

    Raises:
        InputError: its files cannot be read.
    """

    def make() -> bytes:
        from diagnose.pipeline.find import analysed

        capture = _read(files)
        analyses = analysed(capture)
        profile = _packed_profile(capture, files, analyses)
        return msgspec.msgpack.encode((profile, _packed_examination(capture, analyses, draw=draw)))

    return _kept(cache, f"both {draw}", files, make)


def unpack_both(packed: bytes) -> tuple[bytes, bytes]:
    """Return the summary and the examination that ``packed_both`` packed."""
    return msgspec.msgpack.decode(packed, type=tuple[bytes, bytes])


def unpack_examination(packed: bytes) -> tuple[Diagnosis, Program]:
    """Return what ``packed_examination`` packed."""
    from diagnose.tables.program import Program

    return cast("tuple[Diagnosis, Program]", unpack(packed, Program))


def diagnosis_of(files: RankFiles, *, cache: Cache = NOTHING_KEPT, draw: bool, processes: int = 1) -> Diagnosis:
    """Return the diagnosis of a rank that is alone; a large trace is read by several ``processes``.

    Raises:
        InputError: its files cannot be read.
    """
    what = f"diagnosis {draw}"
    if (found := cache.get(what, files)) is not None:
        with suppress(ValueError):
            return cast("Diagnosis", unpack(found))
    from diagnose.trace_reader.folders import read_rank

    # What a diagnosis needs is imported meanwhile, which takes as long as reading 16 MB.
    capture = read_rank(files, processes, partial(import_module, "diagnose.pipeline.rank"))
    from diagnose.pipeline.rank import analyze_rank

    made = analyze_rank(capture, draw=draw)
    with suppress(TypeError, OverflowError):  # it is only not kept
        cache.put(what, files, pack(made) if cache.folder else b"")
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


def _kept(cache: Cache, what: str, files: RankFiles, make: Callable[[], bytes]) -> bytes:
    found = cache.get(what, files)
    if found is None:
        found = make()
        cache.put(what, files, found)
    return found

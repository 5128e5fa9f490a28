"""What is computed of one rank from its files alone, from the cache where it was computed before.

These are the functions that run in other processes and on other machines: files in, bytes out. What they need is
imported when something has to be computed, since a result from the cache needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import msgspec

from diagnose.errors import InputError, is_debugging
from diagnose.model.collector import without_collector
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.serialization import pack, unpack
from diagnose.pipeline.cache import Cache
from diagnose.text.plain_text import middle, one_line
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.inputs import RankFiles

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.capture import Capture, CaptureInfo
    from diagnose.tables.program import Program

__all__ = [
    "PROFILE",
    "Outcome",
    "Work",
    "attempt",
    "both",
    "describe",
    "diagnosis_of",
    "examination",
    "factor_of_files",
    "found_before",
    "packed_both",
    "packed_examination",
    "packed_profile",
    "unpack_both",
    "unpack_examination",
]

Work: TypeAlias = Callable[[RankFiles], bytes]

PROFILE = "profile"  # what a summary is called in the cache
_MAX_WHY_CHARS = 300


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
    return middle(one_line(f"{type(error).__name__}: {error}".rstrip(": ")), _MAX_WHY_CHARS)


def packed_profile(files: RankFiles, cache: Cache | None = None) -> bytes:
    """Return what the comparison of ranks needs of one rank.

    Raises:
        InputError: its files cannot be read.
    """
    return _found_or_made(files, cache, PROFILE, _profiled)


def packed_examination(files: RankFiles, cache: Cache | None = None, *, draw: bool) -> bytes:
    """Return the whole examination of a rank among others, and what is known of its program.

    Raises:
        InputError: its files cannot be read.
    """
    return _found_or_made(files, cache, examination(draw=draw), partial(_examined, draw=draw))


def packed_both(files: RankFiles, cache: Cache | None = None, *, draw: bool) -> bytes:
    """Return the summary and the examination of a rank, for which its files are read once.

    Raises:
        InputError: its files cannot be read.
    """
    return _found_or_made(files, cache, both(draw=draw), partial(_both, draw=draw))


def unpack_both(packed: bytes) -> tuple[bytes, bytes]:
    """Return the summary and the examination that ``packed_both`` packed."""
    return msgspec.msgpack.decode(packed, type=tuple[bytes, bytes])


def both(*, draw: bool) -> str:
    """Return what a summary and an examination in one are called in the cache."""
    return f"both {draw}"


def examination(*, draw: bool) -> str:
    """Return what an examination is called in the cache."""
    return f"examination {draw}"


def found_before(files: RankFiles, cache: Cache | None, what: str) -> bytes | None:
    """Return a result from the cache, None where it is not there or its files cannot be read."""
    try:
        key = _key(cache, what, files)
    except InputError:
        return None
    return cache.get(key) if cache and key else None


def unpack_examination(packed: bytes) -> tuple[Diagnosis, Program]:
    """Return what ``packed_examination`` packed."""
    from diagnose.tables.program import Program

    return cast("tuple[Diagnosis, Program]", unpack(packed, Program))


def diagnosis_of(files: RankFiles, cache: Cache | None = None, *, draw: bool, processes: int = 1) -> Diagnosis:
    """Return the diagnosis of a rank that is alone; a large trace is read by several ``processes``.

    Raises:
        InputError: its files cannot be read.
    """
    key = cache.key(f"diagnosis {draw}", files) if cache else None
    found = cache.get(key) if cache and key else None
    if found is not None:
        with suppress(ValueError):
            return cast("Diagnosis", unpack(found))
    from diagnose.trace_reader.folders import read_rank

    capture = read_rank(files, processes, _import_rules)
    from diagnose.pipeline.rank import analyze_rank

    made = analyze_rank(capture, draw=draw)
    if cache and key:
        with suppress(TypeError, OverflowError):  # it is only not kept
            cache.put(key, pack(made))
    return made


def _import_rules() -> None:
    """Import what a diagnosis needs, which takes as long as reading 16 MB."""
    import_module("diagnose.pipeline.rank")


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


def _examined(files: RankFiles, *, draw: bool) -> bytes:
    return _packed_examination(_read(files), draw=draw)


def _packed_examination(capture: Capture, analyses: Analyses | None = None, *, draw: bool) -> bytes:
    from diagnose.pipeline.rank import examine_rank
    from diagnose.tables.program import Program

    return pack(examine_rank(capture, analyses, draw=draw), Program)


def _profiled(files: RankFiles) -> bytes:
    return _packed_profile(_read(files), files)


def _both(files: RankFiles, *, draw: bool) -> bytes:
    from diagnose.pipeline.find import analysed

    capture = _read(files)
    analyses = analysed(capture)
    profile = _packed_profile(capture, files, analyses)
    return msgspec.msgpack.encode((profile, _packed_examination(capture, analyses, draw=draw)))


def _packed_profile(capture: Capture, files: RankFiles, analyses: Analyses | None = None) -> bytes:
    from diagnose.pipeline.rank import profile_rank

    return replace(profile_rank(capture, analyses), factor=files.factor).to_bytes()


def _key(cache: Cache | None, what: str, files: RankFiles) -> str | None:
    return cache.key(f"{what} {files.factor}", files) if cache else None


def _found_or_made(files: RankFiles, cache: Cache | None, what: str, make: Work) -> bytes:
    key = _key(cache, what, files)
    found = cache.get(key) if cache and key else None
    if found is None:
        found = make(files)
        if cache and key:
            cache.put(key, found)
    return found

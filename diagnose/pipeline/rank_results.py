"""What is computed of one rank from its files alone, from the cache where it was computed before.

These are the functions that run in other processes and on other machines: files in, bytes out. What they need is
imported when something has to be computed, since a result from the cache needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

from diagnose.errors import InputError, is_debugging
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.packing import pack, unpack
from diagnose.pipeline.cache import Cache
from diagnose.text.plain_text import middle, one_line
from diagnose.trace_reader.inputs import RankFiles

__all__ = ["Outcome", "Work", "attempt", "diagnosis_of", "packed_diagnosis", "packed_profile"]

Work: TypeAlias = Callable[[RankFiles], bytes]

_MAX_WHY_CHARS = 300


class Outcome(NamedTuple):
    """What became of one rank."""

    data: bytes  # b"" where it failed
    failure: str = ""  # why, one sentence


def attempt(work: Work, files: RankFiles) -> Outcome:
    """Do the work for one rank; what is wrong with its files is an outcome too, and no reason to stop the others."""
    try:
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

    def make() -> bytes:
        from diagnose.pipeline.rank import profile_rank
        from diagnose.trace_reader.folders import read_rank

        return profile_rank(read_rank(files)).to_bytes()

    return _found_or_made(cache, "profile", files, make)


def packed_diagnosis(files: RankFiles, cache: Cache | None = None, *, draw: bool, alone: bool) -> bytes:
    """Return the whole examination of one rank.

    Raises:
        InputError: its files cannot be read.
    """

    def make() -> bytes:
        from diagnose.pipeline.rank import analyze_rank
        from diagnose.trace_reader.folders import read_rank

        return pack(analyze_rank(read_rank(files), draw=draw, alone=alone))

    return _found_or_made(cache, f"diagnosis {draw} {alone}", files, make)


def diagnosis_of(packed: bytes) -> Diagnosis:
    """Return what ``packed_diagnosis`` packed.

    Raises:
        ValueError: these are other bytes.
    """
    return cast("Diagnosis", unpack(packed))


def _found_or_made(cache: Cache | None, what: str, files: RankFiles, make: Callable[[], bytes]) -> bytes:
    key = cache.key(what, files) if cache else None
    found = cache.get(key) if cache and key else None
    if found is not None:
        return found
    made = make()
    if cache and key:
        cache.put(key, made)
    return made

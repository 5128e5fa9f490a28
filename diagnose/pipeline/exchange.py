"""Ranks that see no disk of each other: each sends its summary to one of them, which compares and answers.

It takes three rounds. Every rank sends how much longer its steps are without the profiler, and gets the factor of all.
Every rank reads its own capture and sends the summary. The one that answers compares them and names the ranks that the
answer is about, and those examine themselves and send what they found, lines included.
"""

from __future__ import annotations

import math
import os
import statistics
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import replace_private
from diagnose.model.launched import RECEIVED_FILE
from diagnose.model.serialization import inflate
from diagnose.pipeline.rank_results import (
    Work,
    attempt,
    factor_of_files,
    packed_examination,
    packed_profile,
    unpack_examination,
)
from diagnose.pipeline.summaries import FORMAT, MAX_FILE_BYTES
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.inputs import RankFiles, list_inputs
from diagnose.trace_reader.stored import Stored

if TYPE_CHECKING:
    from diagnose.ranks.profile import JobProfile, RankProfile
    from diagnose.tables.program import Program

__all__ = [
    "Messages",
    "Received",
    "examination_of",
    "gather",
    "own_files",
    "read_received",
    "take_part",
    "write_received",
]

WAIT_S = 120.0  # ranks stop within a step of each other; what takes long is writing and reading their traces
MAX_EXAMINATION_BYTES = 64 << 20  # unpacked
_WANTED, _FACTOR = "wanted", "factor"


class Messages(Protocol):
    """What carries bytes between the ranks of a job."""

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key for all ranks."""

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return what is stored under a key, None where it does not come in time."""


@dataclass(frozen=True, slots=True)
class Received:
    """What one rank has of all of them."""

    profile: JobProfile
    examined: Mapping[tuple[int, str], bytes] = field(default_factory=dict)  # by rank and path, packed
    absent: Mapping[int, str] = field(default_factory=dict)  # ranks of which nothing came, and why: a sentence

    @property
    def ranks(self) -> frozenset[int]:
        """Return the ranks whose summaries are there."""
        return frozenset(p.rank for p in self.profile.ranks)


class _Kept(msgspec.Struct):
    """The content of ``RECEIVED_FILE``; beyond the last field a file of summaries, which ``analyze --merge`` reads."""

    format: str
    ranks: list[bytes]
    missing: list[str]
    examined: list[tuple[int, str, bytes]]


class _Sent(msgspec.Struct, array_like=True):
    """What a rank sends of itself: a summary or an examination, or why there is none."""

    data: bytes
    failure: str = ""


def own_files(folder: Path, rank: int) -> RankFiles:
    """Return the files of a rank in the capture folder that it has written.

    Raises:
        InputError: they are not there.
    """
    with list_inputs([folder]) as inputs:
        name = f"capture.rank{rank}.json"
        found = [files for files in inputs.ranks if files.description and Path(files.description.path).name == name]
    if not found:
        raise InputError(f"{folder} holds no capture of rank {rank}. Trace the script again.")
    return found[0]


def take_part(files: RankFiles, rank: int, messages: Messages) -> None:
    """Send the summary of this rank to the one that answers, and its examination if that one wants it."""
    own = factor_of_files([files])
    messages.put(_factor_key(rank), _factor(own))
    common = _number(messages.get(_FACTOR, 2 * WAIT_S))
    files = replace(files, factor=own if common is None else common)
    messages.put(_summary_key(rank), _sent(packed_profile, files))
    wanted = messages.get(_WANTED, 2 * WAIT_S)  # who answers may wait for another rank as long
    if wanted is not None and rank in msgspec.msgpack.decode(wanted, type=list[int]):
        messages.put(_examination_key(rank), _examination(files))


def gather(files: RankFiles, rank: int, ranks: Sequence[int], messages: Messages) -> Received:
    """Return what all ranks of a job have sent, and this one's own."""
    from diagnose.analyzers import TRAITS
    from diagnose.pipeline.across import ranks_to_examine
    from diagnose.ranks.comparison import compare_ranks
    from diagnose.ranks.profile import JobProfile, RankProfile

    files = replace(files, factor=_common_factor(files, rank, ranks, messages))
    profiles: list[RankProfile] = []
    absent: dict[int, str] = {}
    own = _sent(packed_profile, files)
    for number, sent in _all(_summary_key, {rank: own}, ranks, messages):
        try:
            if sent is None:
                raise InputError(f"The summary of rank {number} did not come through the job's store.")
            if sent.failure:
                raise InputError(sent.failure)
            profiles.append(RankProfile.from_bytes(sent.data))
        except InputError as error:
            absent[number] = str(error)
    job = JobProfile.of(profiles)
    comparison = compare_ranks(job, TRAITS) if profiles else None
    wanted = ranks_to_examine(comparison) if comparison is not None and comparison.ranks else ()
    messages.put(_WANTED, msgspec.msgpack.encode(wanted))
    mine = {rank: _examination(files)} if rank in wanted else {}
    paths = {p.rank: p.path for p in profiles}
    examined = {
        (number, paths[number]): sent.data
        for number, sent in _all(_examination_key, mine, wanted, messages)
        if sent is not None and sent.data
    }
    return Received(job, examined, absent)


def write_received(folder: Path, received: Received) -> None:
    """Keep in a capture folder what came of ranks whose captures are elsewhere, for who analyses it again.

    Raises:
        OSError: it cannot be written.
    """
    here = _ranks_in(folder, {p.run_id for p in received.profile.ranks})
    others = [p for p in received.profile.ranks if p.rank not in here]
    absent = [why for rank, why in received.absent.items() if rank not in here]
    if not others and not absent:
        return
    kept = _Kept(
        FORMAT,
        [p.to_bytes() for p in others],
        absent,
        [(rank, path, data) for (rank, path), data in received.examined.items() if rank not in here],
    )
    replace_private(folder / RECEIVED_FILE, msgspec.msgpack.encode(kept))


def read_received(paths: Sequence[str | os.PathLike[str]]) -> Received:
    """Return what ``write_received`` kept in the folders among what is named; nothing where there is none.

    Raises:
        InputError: a file is damaged.
    """
    from diagnose.ranks.profile import JobProfile, RankProfile

    job = JobProfile()
    examined: dict[tuple[int, str], bytes] = {}
    for path in paths:
        file = os.path.join(os.fspath(path), RECEIVED_FILE)  # an odd name is no folder
        if not os.path.isfile(file):
            continue
        try:
            if os.path.getsize(file) > MAX_FILE_BYTES:
                raise ValueError("it is larger than any job makes it")
            kept = msgspec.msgpack.decode(Path(file).read_bytes(), type=_Kept)
        except (OSError, ValueError, msgspec.DecodeError):
            raise InputError(f"{file} is damaged. Remove it, or trace the script again.") from None
        if kept.format != FORMAT:
            raise InputError(f"{file} was made by another version of diagnose. Remove it, or trace again.")
        job = job.merge(JobProfile.of(map(RankProfile.from_bytes, kept.ranks), kept.missing))
        examined |= {(rank, path): data for rank, path, data in kept.examined}
    return Received(job, examined)


def _ranks_in(folder: Path, run_ids: Collection[str]) -> set[int]:
    """Return the ranks of these runs whose captures lie in a folder."""
    found: set[int] = set()
    for path in folder.glob("capture.rank*.json"):
        with suppress(InputError):
            info = read_info(Stored(str(path), str(path)))
            found |= {info.rank} if info.run_id in run_ids else set()
    return found


def examination_of(data: bytes) -> tuple[Diagnosis, Program]:
    """Return what a rank has sent as its examination.

    Raises:
        ValueError: these are other bytes.
    """
    from diagnose.tables.program import Program

    diagnosis, program = unpack_examination(inflate(data, MAX_EXAMINATION_BYTES))
    if not isinstance(diagnosis, Diagnosis) or not isinstance(program, Program):
        raise ValueError("this is not the result of a rank")
    return diagnosis, program


def _common_factor(files: RankFiles, rank: int, ranks: Sequence[int], messages: Messages) -> float:
    """Return the median of the ranks' factors and send it to all; 0 if none timed steps without the profiler."""
    mine = {rank: _factor(factor_of_files([files]))}
    known = [factor for _, data in _each(_factor_key, mine, ranks, messages) if (factor := _number(data))]
    common = statistics.median(known) if known else 0.0
    messages.put(_FACTOR, _factor(common))
    return common


def _factor(number: float) -> bytes:
    return msgspec.msgpack.encode(float(number))


def _number(data: bytes | None) -> float | None:
    with suppress(msgspec.DecodeError):
        found = msgspec.msgpack.decode(data, type=float) if data is not None else None
        return found if found is not None and math.isfinite(found) and found >= 0 else None
    return None


def _each(
    key_of: Callable[[int], str], own: Mapping[int, bytes], ranks: Sequence[int], messages: Messages
) -> Iterator[tuple[int, bytes | None]]:
    """Yield what each rank has sent, None where it does not come before all of the time is over."""
    end = time.monotonic() + WAIT_S
    for rank in ranks:
        yield rank, own.get(rank) or messages.get(key_of(rank), max(end - time.monotonic(), 0.0))


def _all(
    key_of: Callable[[int], str], own: Mapping[int, bytes], ranks: Sequence[int], messages: Messages
) -> Iterator[tuple[int, _Sent | None]]:
    for rank, data in _each(key_of, own, ranks, messages):
        sent = None
        if data is not None:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                sent = msgspec.msgpack.decode(data, type=_Sent)
        yield rank, sent


def _sent(work: Work, files: RankFiles) -> bytes:
    outcome = attempt(work, files)
    return msgspec.msgpack.encode(_Sent(*outcome))


def _examination(files: RankFiles) -> bytes:
    return _sent(lambda of: zlib.compress(packed_examination(of, draw=True)), files)


def _factor_key(rank: int) -> str:
    return f"factor/{rank}"


def _summary_key(rank: int) -> str:
    return f"summary/{rank}"


def _examination_key(rank: int) -> str:
    return f"examination/{rank}"

"""Summaries of ranks on their way: in files, and between ranks that see no disk of each other."""

from __future__ import annotations

import glob
import os
import statistics
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.files import replace_private, write_bytes
from diagnose.model.launched import RANKS_WAIT_S, RECEIVED_FILE
from diagnose.model.serialization import inflate
from diagnose.pipeline.rank_results import (
    Outcome,
    Work,
    attempt,
    factor_of_files,
    packed_examination,
    packed_profile,
    unpack_examination,
)
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.text.masking import mask_text
from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.inputs import RankFiles, list_inputs
from diagnose.trace_reader.source import open_source
from diagnose.trace_reader.stored import Stored, is_url, list_folder, matching_urls

if TYPE_CHECKING:
    from diagnose.tables.program import Program

# Summaries of ranks in files: what ``diagnose analyze --partial`` and ``--keep`` write, and ``--merge`` reads.
#
# They are lists of packed profiles, which can be merged in any order and grouping.

SUFFIX = ".ranks"
FORMAT = "diagnose ranks 1"
_REMEDY = "Make it again with diagnose analyze --partial."


class _File(msgspec.Struct):
    """The content of a .ranks file, and of ``RECEIVED_FILE``."""

    format: str
    ranks: list[bytes]
    missing: list[str]
    examined: list[tuple[int, str, bytes]] = []


def write_summaries(path: Path, job: JobProfile, *, force: bool) -> None:
    """Write the summaries of a job's ranks.

    Raises:
        OutputError: the file exists already and ``force`` is off, or it cannot be written.
    """
    ranks = [profile.to_bytes() for profile in job.ranks]
    write_bytes(path, msgspec.msgpack.encode(_File(FORMAT, ranks, list(job.missing))), force=force)


def list_summaries(paths: Sequence[str]) -> list[str]:
    """Return the files of summaries among what is named: files, folders of them, patterns, each also behind a URL.

    Raises:
        InputError: something is neither, or a folder holds none.
    """
    found: list[str] = []
    for path in paths:
        if path.endswith(SUFFIX) and not glob.has_magic(path):
            found.append(path)
        elif is_url(path):
            folder = path.rstrip("/")
            names = matching_urls(path) if glob.has_magic(path) else [f"{folder}/{n}" for n in list_folder(path)]
            found += _some(path, names)
        elif os.path.isdir(path):  # an odd name is no folder
            found += _some(path, [str(file) for file in Path(path).iterdir()])
        else:
            found += _some(path, glob.glob(path, recursive=True))  # a pattern may be absolute
    return list(dict.fromkeys(found))


def _some(path: str, names: Sequence[str]) -> list[str]:
    found = sorted(name for name in names if name.endswith(SUFFIX))
    if not found:
        raise InputError(f"{path} holds no summaries ({SUFFIX}). Make them with diagnose analyze --partial.")
    return found


def read_summaries(paths: Sequence[str]) -> JobProfile:
    """Read files of summaries, and merge them; one that cannot be read is named among what is missing.

    Raises:
        InputError: none of them can be read.
    """
    job, faults = JobProfile(), []
    for path in paths:
        try:
            found = _decoded(path, _content(path), _REMEDY)
            job = job.merge(JobProfile.of(map(RankProfile.from_bytes, found.ranks), found.missing))
        except InputError as error:
            faults.append(str(error))
    if not job.ranks and faults:
        raise InputError(faults[0])
    return job.merge(JobProfile.of((), faults))


def _decoded(path: str, data: bytes, remedy: str) -> _File:
    try:
        found = msgspec.msgpack.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is damaged, or no file of summaries. {remedy}") from None
    if found.format != FORMAT:
        raise InputError(f"{path} was made by another version of diagnose. {remedy}")
    return found


def _content(path: str) -> bytes:
    data, chunk = bytearray(), memoryview(bytearray(1 << 20))
    with open_source(Stored(path, mask_text(path))) as source:
        while count := source.readinto(chunk):
            data += chunk[:count]
            # 200,000 ranks.
            if len(data) > (2 << 30):
                raise InputError(f"{path} holds more than 2 GiB. Merge fewer ranks at a time.")
        if source.fault:
            raise InputError(f"{path} cannot be read: {source.fault}. {_REMEDY}")
    return bytes(data)


# Ranks that see no disk of each other: each sends its summary to one of them, which compares and answers.
#
# It takes three rounds. Every rank sends how much longer its steps are without the profiler, and gets the factor of
# all. Every rank reads its own capture and sends the summary. The one that answers compares them and names the ranks
# that the answer is about, and those examine themselves and send what they found, lines included.

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


def own_files(folder: Path, rank: int) -> RankFiles:
    """Return the files of a rank in the capture folder that it has written.

    Raises:
        InputError: they are not there.
    """
    name, ranks = f"capture.rank{rank}.json", list_inputs([folder]).ranks
    found = [files for files in ranks if files.description and Path(files.description.path).name == name]
    if not found:
        raise InputError(f"{folder} holds no capture of rank {rank}. Trace the script again.")
    return found[0]


def take_part(files: RankFiles, rank: int, messages: Messages) -> None:
    """Send the summary of this rank to the one that answers, and its examination if that one wants it."""
    own = factor_of_files([files])
    messages.put(f"factor/{rank}", msgspec.msgpack.encode(own))
    common = messages.get(_FACTOR, 2 * RANKS_WAIT_S)
    files = replace(files, factor=own if common is None else msgspec.msgpack.decode(common, type=float))
    messages.put(f"summary/{rank}", _sent(packed_profile, files))
    wanted = messages.get(_WANTED, 2 * RANKS_WAIT_S)  # who answers may wait for another rank as long
    if wanted is not None and rank in msgspec.msgpack.decode(wanted, type=list[int]):
        messages.put(f"examination/{rank}", _examination(files))


def gather(
    files: RankFiles, rank: int, ranks: Sequence[int], messages: Messages, *, wait_s: float = RANKS_WAIT_S
) -> Received:
    """Return what all ranks of a job have sent, and this one's own."""
    from diagnose.analyzers import TRAITS
    from diagnose.pipeline.run import parts_of_ranks
    from diagnose.ranks.comparison import compare_ranks

    factors = {rank: msgspec.msgpack.encode(factor_of_files([files]))}
    come = [data for _, data in _each("factor", factors, ranks, (messages, wait_s)) if data is not None]
    known = [factor for data in come if (factor := msgspec.msgpack.decode(data, type=float))]
    files = replace(files, factor=statistics.median(known or [0.0]))  # 0: none timed steps without the profiler
    messages.put(_FACTOR, msgspec.msgpack.encode(files.factor))
    profiles: list[RankProfile] = []
    absent: dict[int, str] = {}
    for number, sent in _all("summary", {rank: _sent(packed_profile, files)}, ranks, (messages, wait_s)):
        try:
            if sent.failure:
                raise InputError(sent.failure)
            profiles.append(RankProfile.from_bytes(sent.data))
        except InputError as error:
            absent[number] = str(error)
    job = JobProfile.of(profiles)
    comparison = compare_ranks(job, TRAITS) if profiles else None
    wanted = [*parts_of_ranks(comparison)] if comparison is not None and comparison.ranks else []
    messages.put(_WANTED, msgspec.msgpack.encode(wanted))
    mine = {rank: _examination(files)} if rank in wanted else {}
    paths = {p.rank: p.path for p in profiles}
    results = _all("examination", mine, wanted, (messages, wait_s))
    return Received(job, {(number, paths[number]): sent.data for number, sent in results if sent.data}, absent)


def write_received(folder: Path, received: Received) -> None:
    """Keep in a capture folder what came of ranks whose captures are elsewhere, for who analyses it again.

    Raises:
        OSError: it cannot be written.
    """
    run_ids, here = {p.run_id for p in received.profile.ranks}, set()
    for path in folder.glob("capture.rank*.json"):
        with suppress(InputError):
            info = read_info(Stored(str(path), str(path)))
            here |= {info.rank} if info.run_id in run_ids else set()
    others = [p for p in received.profile.ranks if p.rank not in here]
    absent = [why for rank, why in received.absent.items() if rank not in here]
    if not others and not absent:
        return
    kept = _File(
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
    job = JobProfile()
    examined: dict[tuple[int, str], bytes] = {}
    for path in paths:
        file = os.path.join(os.fspath(path), RECEIVED_FILE)  # an odd name is no folder
        if os.path.isfile(file):
            data = b""
            with suppress(OSError):
                data = Path(file).read_bytes()
            kept = _decoded(file, data, "Remove it, or trace the script again.")
            job = job.merge(JobProfile.of(map(RankProfile.from_bytes, kept.ranks), kept.missing))
            examined |= {(rank, path): data for rank, path, data in kept.examined}
    return Received(job, examined)


def examination_of(data: bytes) -> tuple[Diagnosis, Program]:
    """Return what a rank has sent as its examination.

    Raises:
        ValueError: these are other bytes.
    """
    from diagnose.tables.program import Program

    diagnosis, program = unpack_examination(inflate(data, 64 << 20))
    if not isinstance(diagnosis, Diagnosis) or not isinstance(program, Program):
        raise ValueError("this is not the result of a rank")
    return diagnosis, program


def _each(
    key: str, own: Mapping[int, bytes], ranks: Sequence[int], store: tuple[Messages, float]
) -> Iterator[tuple[int, bytes | None]]:
    """Yield what each rank has sent, None where it does not come before all of the time is over."""
    messages, wait_s = store
    end = time.monotonic() + wait_s
    for rank in ranks:
        yield rank, own.get(rank) or messages.get(f"{key}/{rank}", max(end - time.monotonic(), 0.0))


def _all(
    key: str, own: Mapping[int, bytes], ranks: Sequence[int], store: tuple[Messages, float]
) -> Iterator[tuple[int, Outcome]]:
    for rank, data in _each(key, own, ranks, store):
        sent = Outcome(b"", f"The {key} of rank {rank} did not come through the job's store.")
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            sent = msgspec.msgpack.decode(data or b"", type=Outcome)
        yield rank, sent


def _sent(work: Work, files: RankFiles) -> bytes:
    return msgspec.msgpack.encode(attempt(work, files))


def _examination(files: RankFiles) -> bytes:
    return _sent(lambda of: zlib.compress(packed_examination(of, draw=True)), files)

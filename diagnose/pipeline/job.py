"""From what a user names to the answer, however many ranks it is: the summaries of all, the examination of few.

Each rank's files become a summary where they lie, in a process of this machine or a worker of a cluster, and only
summaries come back. The ranks are compared by them, and only those that the answer is about are examined in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from diagnose.errors import InputError, UsageError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.events import Note
from diagnose.model.serialization import pack, unpack
from diagnose.pipeline.exchange import Received, examination_of, read_received
from diagnose.pipeline.rank_results import (
    NOTHING_KEPT,
    PROFILE,
    Cache,
    Outcome,
    Work,
    both,
    diagnosis_of,
    examination,
    factor_of_files,
    found_before,
    packed_both,
    packed_examination,
    packed_profile,
    sum_of,
    unpack_both,
    unpack_examination,
)
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import AnyPath, Inputs, RankFiles, list_inputs
from diagnose.trace_reader.stored import Stored, is_url

if TYPE_CHECKING:
    from diagnose.tables.program import Program

__all__ = ["Workers", "analyze_inputs", "answer_from_received", "answer_from_summaries", "profile_inputs"]

# Who reads the ranks: this process, several of this machine, or the workers of a cluster.

Results: TypeAlias = Iterator[tuple[int, Outcome]]
RankRunner: TypeAlias = Callable[[Work, Sequence[RankFiles]], Results]

MIN_BYTES_FOR_PROCESSES = 16 << 20  # of all files: starting processes takes as long as reading about as much
MAX_PROCESSES_OF_ONE_FILE = 4  # beyond, joining the columns and analysing them takes longer than reading
MIN_PROCESS_BYTES = 256 << 20  # that a process has to be allowed: it holds the program, and a trace of usual size


@dataclass(frozen=True, slots=True)
class Workers:
    """Who reads the ranks."""

    num: int | None = None  # processes; None: as many as cores, where there is enough to read
    max_bytes: int | None = None  # of all processes together
    cluster: str = ""  # address of a Dask scheduler, or slurm; "": this machine
    cache: Cache = NOTHING_KEPT  # of what they computed before

    def check(self) -> None:
        """Check what can be checked before the work begins.

        Raises:
            UsageError: the options contradict each other, or are too little to work with.
        """
        if self.cluster:
            from diagnose.pipeline.executors import check_cluster

            check_cluster(self.cluster)
            if self.num is not None or self.max_bytes is not None:
                raise UsageError("--workers and --max-memory are for this machine; leave them out with --cluster.")
        if self.max_bytes is not None and self.max_bytes < MIN_PROCESS_BYTES * (self.num or 1):
            raise UsageError(
                f"--max-memory is too little: each process needs {MIN_PROCESS_BYTES >> 20}M. Give more, or fewer "
                "--workers."
            )


@contextmanager
def started_workers(workers: Workers, inputs: Inputs, progress: Progress) -> Iterator[RankRunner]:
    """Offer who does the work, for as long as the block lasts; one rank from the cache needs nobody."""
    from diagnose.pipeline.executors import Processes, on_executor

    if not workers.cluster:
        with Processes(*_processes(workers, inputs.ranks)) as processes:
            yield processes.run
        return
    from diagnose.pipeline.executors import connected, for_others

    with connected(workers.cluster, progress) as cluster:
        yield lambda work, ranks: on_executor(
            cluster.executor, cluster.num_workers, work, [for_others(rank) for rank in ranks]
        )


def _processes(workers: Workers, ranks: Sequence[RankFiles]) -> tuple[int, int | None]:
    """Return how many processes read, and the bytes that each of them may hold."""
    if any(not isinstance(rank.trace, (Stored, type(None))) for rank in ranks):
        return 1, None  # a pipe is open in this process only
    num = workers.num or (len(os.sched_getaffinity(0)) if _is_much(ranks) else 1)
    if workers.max_bytes is None:
        return num, None
    num = max(1, min(num, workers.max_bytes // MIN_PROCESS_BYTES))
    return num, workers.max_bytes // num


def processes_of_one_file(workers: Workers) -> int:
    """Return how many processes read one file, if it is large."""
    if workers.max_bytes is not None:
        return 1  # of which all columns have to fit into one
    return workers.num or min(len(os.sched_getaffinity(0)), MAX_PROCESSES_OF_ONE_FILE)


def _is_much(ranks: Sequence[RankFiles]) -> bool:
    """Return whether there is enough to read for several processes."""
    if len(ranks) < 2:
        return False
    size = 0
    for rank in ranks:
        file = rank.trace
        if not isinstance(file, Stored) or is_url(file.path):
            return True  # a capture, or something far away
        size += _size(file.path)
        if size >= MIN_BYTES_FOR_PROCESSES:
            return True
    return False


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0


# Answers about jobs that were given before.
#
# An answer rests on the summaries of all ranks and on the files of those that were examined for it: the key is of the
# former, and the entry has the keys of the latter, which must be what they were.


class Answers:
    """What is known of the answer about one job; without a cache nothing is."""

    def __init__(self, cache: Cache, files: Iterable[RankFiles], summaries: Sequence[str], *, draw: bool) -> None:
        self._cache, self._files, self._what = cache, {str(each): each for each in files}, examination(draw=draw)
        self._key = cache.key("\0".join(("answer", self._what, *summaries)))

    def found(self) -> Diagnosis | None:
        """Return the answer, None where there is none or the files of a rank have changed."""
        if (entry := self._cache.get(self._key)) is not None:
            with suppress(ValueError, KeyError, msgspec.DecodeError, InputError):
                names, keys, packed = msgspec.msgpack.decode(entry, type=tuple[list[str], list[str], bytes])
                if [self._cache.key(self._what, self._files[name]) for name in names] == keys:
                    return cast("Diagnosis", unpack(packed))
        return None

    def keep(self, answer: Diagnosis, examined: Sequence[RankFiles]) -> None:
        """Store an answer with the keys of the ranks that were examined for it."""
        with suppress(TypeError, OverflowError, UnicodeEncodeError, InputError):  # it is only not kept
            keys = [self._cache.key(self._what, files) for files in examined]
            if keys and None not in keys:
                entry = [str(files) for files in examined], keys, pack(answer)
                self._cache.put(self._key, msgspec.msgpack.encode(entry))


NUM_EXAMINED = 3  # ranks that an answer needs at most: of so many, each file is read once


@dataclass(frozen=True, slots=True)
class Job:
    """The summaries of the ranks, and how to examine some of them."""

    profile: JobProfile
    files: dict[tuple[int, str], RankFiles]  # by rank and path
    examined: Mapping[tuple[int, str], bytes] = field(default_factory=dict)  # of ranks whose files are elsewhere
    known: Mapping[tuple[int, str], bytes] = field(default_factory=dict)  # examinations that were made with summaries
    sums: tuple[str, ...] = ()  # of the summaries, in the order of the inputs, or why there is none; with a cache only

    def files_of(self, profile: RankProfile) -> RankFiles | None:
        """Return the files that a summary was made from, None where they are not known."""
        return self.files.get((profile.rank, profile.path))


def analyze_inputs(
    paths: Sequence[AnyPath],
    *,
    workers: Workers,
    progress: Progress,
    draw: bool,
    keep: Callable[[JobProfile], None] | None = None,
) -> Diagnosis:
    """Diagnose what is named; ``keep`` is given the summaries where there are several ranks.

    Raises:
        InputError: nothing of it can be read.
        UsageError: the workers cannot be had.
    """
    with _phase(progress, "reading", paths):
        received = read_received(paths)
        inputs = _with_factor(list_inputs(paths), received)
        if len(inputs.ranks) == 1 and not workers.cluster and keep is None and not received.ranks:
            diagnosis = diagnosis_of(
                inputs.ranks[0], workers.cache, draw=draw, processes=processes_of_one_file(workers)
            )
            faults = map(Note, (*inputs.faults, *received.profile.missing))
            return replace(diagnosis, trust=(*diagnosis.trust, *faults))
        with started_workers(workers, inputs, progress) as run:
            job = _profiled(inputs, run, workers.cache, draw=draw)
            known = Answers(
                workers.cache if keep is None and not received.ranks else NOTHING_KEPT,
                job.files.values(),
                (*job.profile.missing, *job.sums),
                draw=draw,
            )
            if (found := known.found()) is not None:
                return found
            job = _with_received(job, received)
            if keep is not None:
                keep(job.profile)
            answer, examined = _answer(job, run, workers.cache, draw=draw)
            known.keep(answer, examined)
            return answer


def profile_inputs(paths: Sequence[AnyPath], *, workers: Workers, progress: Progress) -> JobProfile:
    """Return the summaries of the ranks that are named.

    Raises:
        InputError: nothing of it can be read.
    """
    inputs = list_inputs(paths)
    with _phase(progress, "reading", paths), started_workers(workers, inputs, progress) as run:
        received = read_received(paths)
        return _with_received(_profiled(_with_factor(inputs, received), run, workers.cache), received).profile


def answer_from_received(received: Received, *, progress: Progress) -> Diagnosis:
    """Diagnose a job by what its ranks have sent."""
    with started_workers(Workers(1), Inputs((), ()), progress) as run:
        return _answer(Job(received.profile, {}, received.examined), run, NOTHING_KEPT, draw=True)[0]


def _with_received(job: Job, received: Received) -> Job:
    """Add the ranks whose captures lie elsewhere; a capture of their number that is here is of another run."""
    here = JobProfile.of((p for p in job.profile.ranks if p.rank not in received.ranks), job.profile.missing)
    return replace(job, profile=here.merge(received.profile), examined=received.examined)


def answer_from_summaries(profile: JobProfile, *, workers: Workers, progress: Progress, draw: bool) -> Diagnosis:
    """Diagnose a job by its summaries; the traces of the ranks that matter are examined where they are at hand."""
    with started_workers(workers, Inputs((), ()), progress) as run:
        files = {(p.rank, p.path): _at_hand(p) for p in profile.ranks}
        at_hand = {key: found for key, found in files.items() if found}
        return _answer(Job(profile, at_hand), run, workers.cache, draw=draw)[0]


def _at_hand(p: RankProfile) -> RankFiles | None:
    is_there = is_url(p.path) or os.path.isfile(p.path)  # an odd name is no file
    return RankFiles(None, Stored(p.path, p.path), factor=p.factor) if is_there else None


def _with_factor(inputs: Inputs, received: Received) -> Inputs:
    """Return the ranks with the factor that scales all of them alike; that of ranks elsewhere, if there are any."""
    if len(inputs.ranks) + len(received.ranks) < 2:
        return inputs
    factor = next((p.factor for p in received.profile.ranks), None)
    if factor is None:
        factor = factor_of_files(inputs.ranks)
    return replace(inputs, ranks=tuple(replace(files, factor=factor) for files in inputs.ranks))


@contextmanager
def _phase(progress: Progress, activity: str, paths: Sequence[AnyPath]) -> Iterator[None]:
    names = ", ".join(os.fspath(path) for path in paths[:3]) + (" …" if len(paths) > 3 else "")
    with progress.phase(f"{activity} {names}"):
        yield


def _each(what: str, run: RankRunner, work: Work, ranks: Sequence[RankFiles], cache: Cache) -> Results:
    """Yield the position and the outcome of every rank.

    What was computed before is taken from the cache here, up to the first rank that is new: no process has to start
    where nothing is.
    """
    num_found = 0
    for rank in ranks:
        found = found_before(rank, cache, what)
        if found is None:
            break
        yield num_found, Outcome(found)
        num_found += 1
    yield from ((num_found + i, outcome) for i, outcome in run(work, ranks[num_found:]))


def _profiled(inputs: Inputs, run: RankRunner, cache: Cache, *, draw: bool | None = None) -> Job:
    """Summarize the ranks; of a job in which all are examined later, with ``draw`` or without, they are at once."""
    profiles: list[RankProfile] = []
    files: dict[tuple[int, str], RankFiles] = {}
    known: dict[tuple[int, str], bytes] = {}
    missing = list(inputs.faults)
    sums: dict[int, str] = {}
    what, work = PROFILE, partial(packed_profile, cache=cache)
    if at_once := draw is not None and len(inputs.ranks) <= NUM_EXAMINED:
        what, work = both(draw=bool(draw)), partial(packed_both, cache=cache, draw=bool(draw))
    for i, (data, failure) in _each(what, run, work, inputs.ranks, cache):
        if failure:
            sums[i] = failure
            missing.append(failure)
            continue
        summary, examined = unpack_both(data) if at_once else (data, b"")
        sums[i] = sum_of(summary).hex() if cache.folder else ""
        profile = RankProfile.from_bytes(summary)
        profiles.append(profile)
        files[profile.rank, profile.path] = inputs.ranks[i]
        if examined:
            known[profile.rank, profile.path] = examined
    if not profiles:
        raise InputError(missing[0] if missing else "There is nothing to analyse: name a trace or a capture folder.")
    return Job(JobProfile.of(profiles, missing), files, sums=tuple(sums[i] for i in sorted(sums)), known=known)


def _answer(job: Job, run: RankRunner, cache: Cache, *, draw: bool) -> tuple[Diagnosis, list[RankFiles]]:
    """Return the answer, and the files of the ranks that were examined for it; none where one of these failed."""
    from diagnose.analyzers import TRAITS
    from diagnose.pipeline import run as across
    from diagnose.ranks.comparison import compare_ranks
    from diagnose.tables.program import UNKNOWN

    comparison = compare_ranks(job.profile, TRAITS)
    by_rank = {profile.rank: profile for profile in comparison.ranks}
    wanted = [by_rank[rank] for rank in across.parts_of_ranks(comparison)]
    at_hand = [(profile, files) for profile in wanted if (files := job.files_of(profile)) is not None]
    known = [(p.rank, files) for p, files in at_hand if (p.rank, p.path) not in job.known]
    made = {p.rank: found for p in wanted if (found := _made_before(job, p)) is not None}
    failures: dict[int, str] = {}
    work = partial(packed_examination, cache=cache, draw=draw)
    for i, outcome in _each(examination(draw=draw), run, work, [files for _, files in known], cache):
        if outcome.failure:
            failures[known[i][0]] = outcome.failure
        else:
            made[known[i][0]] = unpack_examination(outcome.data)
    shown = across.shown(comparison)
    if shown not in made:
        made[shown] = across.from_summary(by_rank[shown], failures.get(shown, "")), UNKNOWN
    answer = across.answer_of(comparison, {rank: each for rank, (each, _) in made.items()}, made[shown][1])
    return answer, [files for _, files in at_hand] if not failures else []


def _made_before(job: Job, profile: RankProfile) -> tuple[Diagnosis, Program] | None:
    """Return the examination that came with the summary of a rank, None where it has to be made."""
    key = profile.rank, profile.path
    with suppress(ValueError):
        if key in job.known:
            return unpack_examination(job.known[key])
        if key in job.examined and job.files_of(profile) is None:
            return examination_of(job.examined[key])
    return None

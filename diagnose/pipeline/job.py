"""From what a user names to the answer, however many ranks it is: the summaries of all, the examination of few.

Each rank's files become a summary, in this process, in several or on a cluster, and only summaries come back. The ranks
are compared by them, and only those that the answer is about are examined in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diagnose.errors import InputError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.events import Note
from diagnose.pipeline.exchange import Received, examination_of, read_received
from diagnose.pipeline.rank_results import (
    NOTHING_KEPT,
    Cache,
    diagnosis_of,
    factor_of_files,
    packed_both,
    packed_examination,
    packed_profile,
    unpack_both,
    unpack_examination,
)
from diagnose.pipeline.sources import with_source_diffs
from diagnose.ranks.profile import JobProfile, RankProfile
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import AnyPath, Inputs, RankFiles, list_inputs
from diagnose.trace_reader.stored import Stored, is_url

if TYPE_CHECKING:
    from diagnose.pipeline.executors import Cluster, Processes
    from diagnose.tables.program import Program


class Workers(NamedTuple):
    """Who reads the ranks."""

    num: int | None = None  # processes; None: as many as cores, if there is enough to read
    cache: Cache = NOTHING_KEPT  # of what they computed before
    cluster: str = ""  # address of a Dask scheduler, or slurm; "": this machine


@dataclass(frozen=True, slots=True)
class Job:
    """The summaries of the ranks, and how to examine some of them; files and results are by rank and path."""

    profile: JobProfile
    files: Mapping[tuple[int, str], RankFiles] = field(default_factory=dict)
    made: Mapping[tuple[int, str], tuple[Diagnosis, Program]] = field(default_factory=dict)  # examinations


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
    """
    with progress.phase(reading(paths)):
        received = read_received(paths)
        inputs = _with_factor(list_inputs(paths), received)
        if len(inputs.ranks) == 1 and not workers.cluster and keep is None and not received.ranks:
            # Beyond, joining the columns and analysing them takes longer than reading.
            num = workers.num or min(len(os.sched_getaffinity(0)), 4)
            diagnosis = diagnosis_of(inputs.ranks[0], cache=workers.cache, draw=draw, processes=num)
            faults = map(Note, (*inputs.faults, *received.profile.missing))
            return with_source_diffs(replace(diagnosis, trust=(*diagnosis.trust, *faults)))
        with _processes(workers, inputs.ranks) as processes:
            job = _with_received(_profiled(inputs, processes, workers.cache, draw=draw), received)
            if keep is not None:
                keep(job.profile)
            return _answer(job, processes, workers.cache, draw=draw)


def profile_inputs(paths: Sequence[AnyPath], *, workers: Workers, progress: Progress) -> JobProfile:
    """Return the summaries of the ranks that are named.

    Raises:
        InputError: nothing of it can be read.
    """
    with progress.phase(reading(paths)):
        received = read_received(paths)
        inputs = _with_factor(list_inputs(paths), received)
        with _processes(workers, inputs.ranks) as processes:
            return _with_received(_profiled(inputs, processes, workers.cache), received).profile


def answer_from_received(received: Received) -> Diagnosis:
    """Diagnose a job by what its ranks have sent."""
    with _processes(Workers(1), ()) as processes:
        return _answer(_with_received(Job(JobProfile()), received), processes, NOTHING_KEPT, draw=True)


def answer_from_summaries(profile: JobProfile, *, workers: Workers, draw: bool) -> Diagnosis:
    """Diagnose a job by its summaries; the traces of the ranks that matter are examined where they are at hand."""
    files = {
        (p.rank, p.path): RankFiles(None, Stored(p.path, p.path), factor=p.factor)
        for p in profile.ranks
        if is_url(p.path) or os.path.isfile(p.path)  # an odd name is no file
    }
    with _processes(workers, ()) as processes:
        return _answer(Job(profile, files), processes, workers.cache, draw=draw)


def reading(paths: Sequence[AnyPath], activity: str = "reading") -> str:
    """Return what is shown while these are read."""
    return f"{activity} " + ", ".join(os.fspath(path) for path in paths[:3]) + (" …" if len(paths) > 3 else "")


def _processes(workers: Workers, ranks: Sequence[RankFiles]) -> AbstractContextManager[Processes | Cluster]:
    """Return the processes that read the ranks, or the cluster that does."""
    from diagnose.pipeline.executors import Processes, connected  # with the modules that start processes

    if workers.cluster:
        return connected(workers.cluster)
    if any(not isinstance(rank.trace, (Stored, type(None))) for rank in ranks):
        return Processes(1)  # a pipe is open in this process only
    return Processes(workers.num or (len(os.sched_getaffinity(0)) if _is_much(ranks) else 1))


def _is_much(ranks: Sequence[RankFiles]) -> bool:
    """Return whether there is enough to read for several processes."""
    size = 0
    for rank in ranks if len(ranks) > 1 else ():
        file = rank.trace
        if not isinstance(file, Stored) or is_url(file.path):
            return True  # a capture, or something far away
        with suppress(OSError, ValueError):
            size += Path(file.path).stat().st_size
    return size >= (16 << 20)  # of all files: starting processes takes as long as reading about as much


def _with_received(job: Job, received: Received) -> Job:
    """Add the ranks whose captures lie elsewhere; a capture of their number that is here is of another run."""
    here = JobProfile.of((p for p in job.profile.ranks if p.rank not in received.ranks), job.profile.missing)
    made = dict(job.made)
    for key, data in received.examined.items():
        if key not in job.files:
            with suppress(ValueError):
                made[key] = examination_of(data)
    return replace(job, profile=here.merge(received.profile), made=made)


def _with_factor(inputs: Inputs, received: Received) -> Inputs:
    """Return the ranks with the factor that scales all of them alike; that of ranks elsewhere, if there are any."""
    if len(inputs.ranks) + len(received.ranks) < 2:
        return inputs
    factor = next((p.factor for p in received.profile.ranks), None)
    if factor is None:
        factor = factor_of_files(inputs.ranks)
    return replace(inputs, ranks=tuple(replace(files, factor=factor) for files in inputs.ranks))


def _profiled(inputs: Inputs, processes: Processes | Cluster, cache: Cache, *, draw: bool | None = None) -> Job:
    """Summarize the ranks; of a job in which all are examined later, with ``draw`` or without, they are at once."""
    profiles: list[RankProfile] = []
    files: dict[tuple[int, str], RankFiles] = {}
    made: dict[tuple[int, str], tuple[Diagnosis, Program]] = {}
    missing = list(inputs.faults)
    # So many ranks an answer needs at most: each file is read once.
    at_once = draw is not None and len(inputs.ranks) <= 3
    work = partial(packed_both, cache=cache, draw=bool(draw)) if at_once else partial(packed_profile, cache=cache)
    for i, (data, failure) in processes.run(work, inputs.ranks):
        if failure:
            missing.append(failure)
            continue
        summary, examined = unpack_both(data) if at_once else (data, b"")
        profile = RankProfile.from_bytes(summary)
        profiles.append(profile)
        files[profile.rank, profile.path] = inputs.ranks[i]
        if examined:
            made[profile.rank, profile.path] = unpack_examination(examined)
    if not profiles:
        raise InputError(missing[0] if missing else "There is nothing to analyse: name a trace or a capture folder.")
    return Job(JobProfile.of(profiles, missing), files, made)


def _answer(job: Job, processes: Processes | Cluster, cache: Cache, *, draw: bool) -> Diagnosis:
    """Return the answer; the ranks that it is about are examined if their files are at hand."""
    from diagnose.analyzers import TRAITS
    from diagnose.pipeline import run as across
    from diagnose.ranks.comparison import compare_ranks
    from diagnose.tables.program import UNKNOWN

    comparison = compare_ranks(job.profile, TRAITS)
    by_rank = {profile.rank: profile for profile in comparison.ranks}
    wanted = [by_rank[rank] for rank in across.parts_of_ranks(comparison)]
    made = {p.rank: job.made[p.rank, p.path] for p in wanted if (p.rank, p.path) in job.made}
    left = [p for p in wanted if p.rank not in made and (p.rank, p.path) in job.files]
    failures: dict[int, str] = {}
    work = partial(packed_examination, cache=cache, draw=draw)
    for i, outcome in processes.run(work, [job.files[p.rank, p.path] for p in left]):
        if outcome.failure:
            failures[left[i].rank] = outcome.failure
        else:
            made[left[i].rank] = unpack_examination(outcome.data)
    shown = across.shown(comparison)
    if shown not in made:
        made[shown] = across.from_summary(by_rank[shown], failures.get(shown, "")), UNKNOWN
    answer = across.answer_of(comparison, {rank: each for rank, (each, _) in made.items()}, made[shown][1])
    return with_source_diffs(answer)

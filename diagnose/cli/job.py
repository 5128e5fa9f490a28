"""The commands that read ranks: who reads them, what is kept of them, and the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.answer import Request, answer, prepare
from diagnose.cli.export import planned, write_exports
from diagnose.errors import OutputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable
from diagnose.pipeline.job import Workers, analyze_inputs, answer_from_summaries, profile_inputs
from diagnose.pipeline.rank_results import Cache, default_cache
from diagnose.text.progress import Progress
from diagnose.trace_reader import open_captures

if TYPE_CHECKING:
    from diagnose.model.capture import Capture
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.ranks.profile import JobProfile

__all__ = ["JobRequest", "SummaryRequest", "analyze_and_answer", "merge_and_answer", "summarize"]

_SIZE = r"(?i)(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?"
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Return a number of bytes: 8G, 512M.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(_SIZE, text.strip())
    if found is None:
        raise UsageError(f"Invalid size '{printable(text)}': use 512M or 8G.")
    return int(float(found[1]) * 2 ** _UNITS[found[2].upper()])


def workers_of(num: int | None, max_memory: str | None, cluster: str, *, no_cache: bool) -> Workers:
    """Return who reads the ranks, after checking it.

    Raises:
        UsageError: the options contradict each other.
    """
    max_bytes = None if max_memory is None else parse_size(max_memory)
    workers = Workers(num, max_bytes, cluster, Cache() if no_cache else default_cache())
    workers.check()
    return workers


@dataclass(frozen=True, slots=True)
class JobRequest(Request):
    """Where a diagnosis of ranks goes, and who makes it."""

    workers: int | None = None
    max_memory: str | None = None
    cluster: str = ""
    keep: str | None = None
    no_cache: bool = False
    cross_check: str | None = None
    exports: tuple[str, ...] = ()  # KIND=FILE
    prints: bool = True  # the command export of before prints no answer


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Where summaries go, and who makes them."""

    output: str
    force: bool = False
    quiet: bool = False
    workers: int | None = None
    max_memory: str | None = None
    cluster: str = ""
    no_cache: bool = False


def analyze_and_answer(paths: Sequence[str], request: JobRequest) -> None:
    """Diagnose what is named, and keep the summaries where that was asked for.

    Raises:
        InputError: nothing of it can be read.
        OutputError: a file cannot be written.
    """
    files = prepare(request, inputs=paths)
    others = {"--keep": request.keep, "--html": request.html, "--output": request.output}
    exports = planned(request.exports, others, paths, force=request.force)
    keep = _kept("--keep", request.keep, request.output, paths, force=request.force)
    workers = workers_of(request.workers, request.max_memory, request.cluster, no_cache=request.no_cache)
    diagnosis = analyze_inputs(
        paths,
        workers=workers,
        progress=request.progress,
        draw=bool(exports) or _draws(request, files),
        keep=None if keep is None else lambda profile: _write(keep, profile, request.progress, force=request.force),
    )
    failure: OutputError | None = None
    if exports or request.cross_check:
        with request.progress.phase("reading again"):
            captures = open_captures(paths)
        if request.cross_check:
            diagnosis = _cross_checked(diagnosis, captures, request.progress)
        try:
            write_exports(request.chosen(diagnosis), captures, exports, force=request.force, progress=request.progress)
        except OutputError as error:
            failure = error
    if request.prints:
        answer(diagnosis, request, files)
    if failure is not None:
        raise failure


def _cross_checked(diagnosis: Diagnosis, captures: Sequence[Capture], progress: Progress) -> Diagnosis:
    """Add HTA's figures of the rank that the answer is about."""
    from diagnose.integrations.hta import cross_check_hta
    from diagnose.pipeline.run import shown_rank

    with progress.phase("asking HTA"):
        return replace(diagnosis, cross_check=cross_check_hta(captures[shown_rank(captures)]))


def summarize(paths: Sequence[str], request: SummaryRequest) -> None:
    """Write the summaries of the ranks that are named.

    Raises:
        InputError: nothing of it can be read.
        OutputError: the file cannot be written.
    """
    path = _kept("--partial", request.output, None, paths, force=request.force)
    assert path is not None
    workers = workers_of(request.workers, request.max_memory, request.cluster, no_cache=request.no_cache)
    progress = Progress(quiet=request.quiet)
    profile = profile_inputs(paths, workers=workers, progress=progress)
    _write(path, profile, progress, force=request.force)
    for sentence in profile.missing:
        progress.report(sentence)


def merge_and_answer(paths: Sequence[str], request: JobRequest) -> None:
    """Merge files of summaries and diagnose the job, or write them as one file where only that was asked for.

    Raises:
        InputError: none of the files can be read.
        OutputError: a file cannot be written.
    """
    from diagnose.pipeline.exchange import list_summaries, read_summaries

    files = prepare(request, inputs=paths)
    keep = _kept("--keep", request.keep, request.output, paths, force=request.force)
    workers = workers_of(request.workers, request.max_memory, request.cluster, no_cache=request.no_cache)
    with request.progress.phase(f"merging {', '.join(paths[:3])}{' …' if len(paths) > 3 else ''}"):
        profile = read_summaries(list_summaries(paths))
    if keep is not None:
        _write(keep, profile, request.progress, force=request.force)
    draw = _draws(request, files)
    answer(answer_from_summaries(profile, workers=workers, progress=request.progress, draw=draw), request, files)


def _draws(request: JobRequest, files: Sequence[Path]) -> bool:
    """Return whether a form is asked for that shows the picture of a step."""
    return not request.as_json or any(file.suffix != ".json" for file in files)


def _kept(option: str, name: str | None, output_name: str | None, inputs: Sequence[str], *, force: bool) -> Path | None:
    """Return the file of summaries to write, if any, after checking that it can be."""
    if name is None:
        return None
    from diagnose.pipeline.exchange import check_keep

    path = Path(name)
    check_keep(path)
    check_distinct({option: name, "--output": output_name}, inputs)
    check_file(path, force=force)
    return path


def _write(path: Path, profile: JobProfile, progress: Progress, *, force: bool) -> None:
    from diagnose.pipeline.exchange import write_summaries

    write_summaries(path, profile, force=force)
    progress.report(f"wrote {printable(path)}")

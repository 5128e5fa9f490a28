"""``diagnose analyze``: who reads the ranks, what is kept of them, the answer, and its forms for other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.output import Request, answer, answer_text, plan_text, prepare
from diagnose.errors import OutputError, UsageError, missing_extra
from diagnose.model.files import check_distinct, check_file, check_folder, printable, write_bytes
from diagnose.model.limits import EXPORTS
from diagnose.pipeline.job import Workers, analyze_inputs, answer_from_summaries, profile_inputs, reading
from diagnose.pipeline.rank_results import NOTHING_KEPT, default_cache
from diagnose.text.progress import Progress
from diagnose.trace_reader import open_captures

if TYPE_CHECKING:
    from diagnose.model.capture import Capture
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.ranks.profile import JobProfile


@dataclass(frozen=True, slots=True)
class JobRequest(Request):
    """Where a diagnosis of ranks goes, and who makes it."""

    workers: int | None = None
    cluster: str = ""
    keep: str | None = None
    no_cache: bool = False
    cross_check: str | None = None
    exports: tuple[str, ...] = ()  # KIND=FILE
    query: str | None = None


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Where summaries go, and who makes them."""

    output: str
    force: bool = False
    quiet: bool = False
    workers: int | None = None
    cluster: str = ""
    no_cache: bool = False


def _workers(request: JobRequest | SummaryRequest) -> Workers:
    """Return who reads the ranks, after checking it."""
    if request.cluster:
        from diagnose.pipeline.executors import check_cluster

        check_cluster(request.cluster)
        if request.workers is not None:
            raise UsageError("--workers is for this machine; leave it out with --cluster.")
    return Workers(request.workers, NOTHING_KEPT if request.no_cache else default_cache(), request.cluster)


def analyze_and_answer(paths: Sequence[str], request: JobRequest) -> None:
    """Diagnose what is named, and keep the summaries where that was asked for.

    Raises:
        InputError: nothing of it can be read.
        OutputError: a file cannot be written.
    """
    if request.query is not None:
        _answer_query(paths, request.query, request)
        return
    files = prepare(request, inputs=paths)
    others = {"--keep": request.keep, "--html": request.html, "--output": request.output}
    exports = _planned(request.exports, others, paths, force=request.force)
    keep = _kept("--keep", request.keep, request.output, paths, force=request.force)
    diagnosis = analyze_inputs(
        paths,
        workers=_workers(request),
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
            _write_exports(request.chosen(diagnosis), captures, exports, force=request.force, progress=request.progress)
        except OutputError as error:
            failure = error
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
    progress = Progress(quiet=request.quiet)
    profile = profile_inputs(paths, workers=_workers(request), progress=progress)
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
    with request.progress.phase(reading(paths, "merging")):
        profile = read_summaries(list_summaries(paths))
    if keep is not None:
        _write(keep, profile, request.progress, force=request.force)
    found = answer_from_summaries(profile, workers=_workers(request), draw=_draws(request, files))
    answer(found, request, files)


def _draws(request: JobRequest, files: Sequence[Path]) -> bool:
    """Return whether a form is asked for that shows the picture of a step."""
    return not request.as_json or any(file.suffix != ".json" for file in files)


def _kept(option: str, name: str | None, output_name: str | None, inputs: Sequence[str], *, force: bool) -> Path | None:
    """Return the file of summaries to write, if any, after checking that it can be."""
    if name is None:
        return None
    from diagnose.pipeline.exchange import SUFFIX

    path = Path(name)
    if path.suffix != SUFFIX:
        raise UsageError(f"Invalid name '{printable(path)}': it must end in {SUFFIX}.")
    check_distinct({option: name, "--output": output_name}, inputs)
    check_file(path, force=force)
    return path


def _write(path: Path, profile: JobProfile, progress: Progress, *, force: bool) -> None:
    from diagnose.pipeline.exchange import write_summaries

    write_summaries(path, profile, force=force)
    progress.report(f"wrote {printable(path)}")


def _answer_query(paths: Sequence[str], sql: str, request: JobRequest) -> None:
    """Print the rows that a query finds in the recordings: tab-separated, or JSON."""
    import msgspec

    from diagnose.pipeline.query import MAX_ROWS, query

    others = {
        "--html": request.html,
        "--keep": request.keep,
        "--export": request.exports,
        "--cross-check": request.cross_check,
        "--select": request.select,
        "--ignore": request.ignore,
    }
    if unused := [name for name, value in others.items() if value]:
        raise UsageError(f"--query prints rows and no diagnosis; leave out {' and '.join(unused)}.")
    files = plan_text(request, paths)
    request.progress.report(reading(paths))
    found = query(open_captures(paths), sql)
    lines = ["\t".join("" if value is None else printable(str(value)) for value in row) for row in found.rows]
    cut = [f"The first {MAX_ROWS} rows; there are more."] if found.is_cut else []
    content = {"columns": found.columns, "rows": found.rows, "is_cut": found.is_cut}
    answer_text(
        lambda: "\n".join(["\t".join(found.columns), *lines, *cut]),
        lambda: msgspec.json.encode(content).decode(),
        request,
        files,
    )


def _planned(
    exports: Sequence[str], others: Mapping[str, str | None], paths: Sequence[str], *, force: bool
) -> dict[str, str]:
    """Return the file of each kind that ``--export`` names, after checking that it can be written.

    ``others`` are the files of other options, ``paths`` what is read.

    Raises:
        UsageError: a text is no KIND=FILE, a kind is given twice, or a file has two meanings or the wrong suffix.
        InputError: the package that writes a form is not installed.
        OutputError: a file exists already, or cannot be written.
    """
    known = f"{', '.join(EXPORTS[:-1])} or {EXPORTS[-1]}"
    files: dict[str, str] = {}
    for text in exports:
        kind, _, file = text.partition("=")
        if kind not in EXPORTS or not file:
            raise UsageError(f"Invalid --export '{printable(text)}': use KIND=FILE with a KIND of {known}.")
        if kind in files:
            raise UsageError(f"--export {kind} is given twice; leave one of them out.")
        files[kind] = file
    if files and "-" in paths:
        raise UsageError("--export reads the recording twice, which standard input cannot; name a file.")
    check_distinct({**others, **{f"--export {kind}": file for kind, file in files.items()}}, paths)
    for kind, file in files.items():
        _check(kind, file, force=force)
    return files


def _check(kind: str, file: str, *, force: bool) -> None:
    if kind == "tensorboard":
        from diagnose.integrations.tensorboard import check_log

        check_log(Path(file), force=force)
        return
    if kind == "figures":
        if find_spec("plotly") is None:
            raise missing_extra("Figures are made by plotly", "plots")
        check_folder(Path(file), force=force)
        return
    if kind in ("findings", "kernels") and Path(file).suffix.lower() != ".csv":
        raise UsageError(f"Invalid --export {kind} '{printable(file)}': the name must end in .csv.")
    check_file(Path(file), force=force)


def _write_exports(
    diagnosis: Diagnosis, captures: Sequence[Capture], files: Mapping[str, str], *, force: bool, progress: Progress
) -> None:
    """Write a diagnosis of the captures in every form that was asked for.

    Raises:
        OutputError: a file has appeared since it was checked, or cannot be written.
    """
    from diagnose.answer.screen import answer as screen
    from diagnose.pipeline.run import shown_rank
    from diagnose.pipeline.timeline import whole_window
    from diagnose.reports import exports
    from diagnose.reports.markdown import as_markdown

    shown = captures[shown_rank(captures)]
    picture = whole_window(shown)
    makers: dict[str, Callable[[], str]] = {
        "perfetto": lambda: exports.perfetto(diagnosis, picture),
        "speedscope": lambda: exports.speedscope(diagnosis, picture),
        "collapsed": lambda: exports.collapsed(picture),
        "findings": lambda: exports.csv_table(exports.findings_table(diagnosis)),
        "kernels": lambda: exports.csv_table(exports.kernels_table(diagnosis, picture)),
        "markdown": lambda: as_markdown(diagnosis, screen(diagnosis)).rstrip("\n") + "\n",
    }
    for kind, file in files.items():
        if kind == "tensorboard":
            from diagnose.integrations.tensorboard import write_log

            write_log(Path(file), captures, shown, force=force)
            progress.report(f"wrote {printable(file)}; open it with tensorboard --logdir")
        elif kind == "figures":
            from diagnose.reports.figures import write_figures

            progress.report(f"wrote {', '.join(write_figures(diagnosis, Path(file)))} into {printable(file)}")
        else:
            write_bytes(file, makers[kind]().encode(), force=force)
            progress.report(f"wrote {printable(file)}")
    if picture.num_spans_left_out:
        progress.report(
            f"the {picture.num_spans_left_out:,} shortest bars were left out; causes and findings rest on all"
        )

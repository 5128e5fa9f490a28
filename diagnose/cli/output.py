"""Where an answer goes: standard output, and files whose suffix is the format, checked before the work begins."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import OutputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable, write_file
from diagnose.reports.language import ENGLISH, language
from diagnose.text.plain_text import in_encoding
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

FORMATS = (".html", ".json", ".txt")
CLOSED = "Standard output is closed, so the result has no place to go; leave it open, or use --output FILE."


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """Where a result goes: the options that every command has."""

    as_json: bool = False
    output: str | None = None
    html: str | None = None
    force: bool = False
    quiet: bool = False
    lang: str = ENGLISH  # of text and pages; JSON stays English

    @property
    def progress(self) -> Progress:
        """Return where progress is shown."""
        return Progress(quiet=self.quiet)


@dataclass(frozen=True, slots=True)
class Request(ResultRequest):
    """Where a diagnosis goes."""

    open_browser: bool = False
    verbose: bool = False
    select: tuple[str, ...] = ()  # rules whose findings are shown; without any, all
    ignore: tuple[str, ...] = ()  # rules whose findings are left out

    def chosen(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis without what options and comments leave out."""
        return chosen(diagnosis, self.select, self.ignore)


def plan_text(request: ResultRequest, inputs: Iterable[str | Path] = (), *, has_page: bool = False) -> tuple[Path, ...]:
    """Return the files that ``--html`` and ``--output`` name, after checking that each can be written.

    ``inputs`` are the files that are read, which no option may name. ``has_page``: the command makes a page too, so
    that ``--output`` may name one.

    Raises:
        UsageError: a suffix names no format, or two options or an option and an input name one file.
        OutputError: a file exists already and ``--force`` was not given, or its folder is missing or not writable; or
            there is no file, and standard output is closed.
    """
    html, output, formats = request.html, request.output, FORMATS[not has_page :]
    if html and not is_page(Path(html)):
        raise UsageError(f"Invalid --html '{printable(html)}': the name must end in .html.")
    if output and _format(Path(output)) not in formats:
        known = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise UsageError(f"Invalid --output '{printable(output)}': the name must end in {known}.")
    check_distinct({"--html": html, "--output": output}, inputs)
    paths = tuple(Path(name) for name in (html, output) if name)
    for path in paths:
        check_file(path, force=request.force)
    if not paths and sys.stdout is None:
        raise OutputError(CLOSED)
    return paths


def answer_text(
    text: Callable[[], str],
    json: Callable[[], str],
    request: ResultRequest,
    files: Sequence[Path],
    page: Callable[[], str] | None = None,
) -> None:
    """Write a result to the files of ``plan_text``, print it in the form that was asked for, and name the files.

    ``page`` makes the HTML page of a command that has one.

    Raises:
        OutputError: a file cannot be written; the result has been printed all the same.
    """
    makers = {".json": json, ".html": page or text}
    _deliver(
        request,
        files,
        lambda file: makers.get(_format(file), text)().rstrip("\n") + "\n",
        lambda _written: json() if request.as_json else text(),
    )


def _deliver(
    request: ResultRequest,
    files: Sequence[Path],
    rendered: Callable[[Path], str],
    printed: Callable[[Sequence[Path]], str],
) -> None:
    """Write the files, print the answer, given the files that were written, and name them.

    Raises:
        OutputError: a file cannot be written; the answer has been printed all the same.
    """
    failures: list[OutputError] = []
    with language(request.lang):
        for file in files:  # before anything is printed: the reader of standard output may go
            try:
                write_file(file, rendered(file), force=request.force)
            except OutputError as error:
                failures.append(error)
        shown = printed([] if failures else files)
    print_result(shown, needed=not files)
    if failures:
        raise failures[0]
    for file in files:
        request.progress.report(f"wrote {printable(file)}")


def print_result(text: str, *, needed: bool = True) -> None:
    """Print to standard output in its encoding; where its reader has gone, end the process quietly.

    Raises:
        OutputError: it is closed, and the result is ``needed`` there since no file has it.
    """
    if sys.stdout is None:
        if needed:
            raise OutputError(CLOSED)
        return
    try:
        print(in_encoding(text, sys.stdout.encoding), flush=True)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; that must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # As a shell shows SIGPIPE: `diagnose analyze … | head` is no fault.
        sys.exit(141)


def check_rules(select: Sequence[str], ignore: Sequence[str]) -> None:
    """Check names of rules before the work begins.

    Raises:
        UsageError: there is no rule of that name.
    """
    if select or ignore:  # the rules take a moment to import
        from diagnose.cli.ignoring import RuleChoice

        RuleChoice.of(select, ignore)


def chosen(diagnosis: Diagnosis, select: Sequence[str], ignore: Sequence[str]) -> Diagnosis:
    """Return the diagnosis without what options and comments leave out."""
    from diagnose.cli.ignoring import RuleChoice, leave_out

    return leave_out(diagnosis, RuleChoice.of(select, ignore))


def prepare(request: Request, inputs: Sequence[str | Path] = ()) -> tuple[Path, ...]:
    """Return the files to write, after checking all of it that can be checked before the work begins.

    Raises:
        UsageError: the options contradict each other, or name one of the ``inputs``.
        OutputError: a file cannot be written, or exists and may not be overwritten.
    """
    check_rules(request.select, request.ignore)
    files = plan_text(request, inputs, has_page=True)
    if request.open_browser and not any(is_page(file) for file in files):
        raise UsageError("--open needs an HTML report; add --html FILE.")
    return files


def analyze_with_progress(paths: Sequence[str | Path], progress: Progress) -> Diagnosis:
    """Read traces or capture folders and diagnose them.

    Raises:
        InputError: nothing can be read from a path.
    """
    from diagnose.pipeline.job import reading

    with progress.phase(reading(paths)):
        from diagnose.trace_reader import open_captures

        captures = open_captures(paths)
    with progress.phase("analysing"):
        from diagnose.pipeline.run import analyze_captures

        return analyze_captures(captures)


def answer(diagnosis: Diagnosis, request: Request, files: Sequence[Path]) -> None:
    """Write the files, print the answer, and name the files.

    Raises:
        OutputError: a file cannot be written; the answer has been printed all the same.
    """
    diagnosis = request.chosen(diagnosis)
    page = next(filter(is_page, files), None)
    if page is not None:
        diagnosis = with_diff_files(diagnosis, page, request)

    def printed(written: Sequence[Path]) -> str:
        if request.as_json:
            from diagnose.reports import json

            return json.render(diagnosis)
        from diagnose.reports.text import terminal_text

        whole = [file for file in written if _format(file) in (".html", ".json")]
        return terminal_text(diagnosis, verbose=request.verbose, written=whole)

    _deliver(request, files, lambda file: _rendered(diagnosis, file), printed)
    if request.open_browser:
        import webbrowser  # starts with the modules that start processes

        webbrowser.open(next(file for file in files if is_page(file)).absolute().as_uri())


def _rendered(diagnosis: Diagnosis, file: Path) -> str:
    """Return the report in the format that the suffix of the file asks for."""
    match _format(file):
        case ".html":
            from diagnose.reports import html

            return html.render(diagnosis)
        case ".json":
            from diagnose.reports import json

            return json.render(diagnosis) + "\n"
        case _:
            from diagnose.reports import text

            return text.render(diagnosis)


def is_page(file: Path) -> bool:
    """Return whether a file is to hold a page, by its name."""
    return _format(file) == ".html"


def _format(path: Path) -> str:
    return {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())


def with_diff_files(diagnosis: Diagnosis, page: Path, request: Request) -> Diagnosis:
    """Write the diffs that the report shows, and return the diagnosis with the commands that apply them.

    Those of sources that lie elsewhere are left out. The name of a file holds the number that the change has on the
    first screen. An existing file is replaced with ``--force`` only; one that cannot be written is named and left out.
    """
    from diagnose.changes.edits.separate_diffs import applies_in

    commands = {}
    for p in diagnosis.prescriptions:
        if not applies_in(Path.cwd(), p.diff):
            continue
        number = diagnosis.shown.index(p.id) + 1 if p.id in diagnosis.shown else 0
        part, which = (
            (f"change-{number}", f"change {number}")
            if number
            else ("further", "a further change, which is not on the first screen")
        )
        file = page.with_name(f"{page.stem}.{part}.{p.id}.diff")
        try:
            write_file(file, p.diff, force=request.force)
        except OutputError as error:
            request.progress.report(f"the diff of {p.id} was not written: {error}")
            continue
        request.progress.report(f"wrote {printable(file)}: {which}, {p.title}")
        commands[p.id] = shlex.join(["git", "apply", str(file)])
    found = (replace(p, apply_with=commands.get(p.id, "")) for p in diagnosis.prescriptions)
    return replace(diagnosis, prescriptions=tuple(found))

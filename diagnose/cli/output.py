"""Where a result goes: standard output, and files whose suffix is the format, checked before the work begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from diagnose.errors import OutputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable, write_file
from diagnose.reports.language import ENGLISH, language
from diagnose.text.plain_text import in_encoding
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["FORMATS", "TEXT_FORMATS", "ResultRequest", "answer_text", "plan", "plan_text", "print_result", "write"]

FORMATS = (".html", ".json", ".txt")
TEXT_FORMATS = (".json", ".txt")
CLOSED = "Standard output is closed, so the result has no place to go; leave it open, or use --output FILE."
READER_GONE = 141  # as a shell shows SIGPIPE: `diagnose analyze … | head` is no fault


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


def plan_text(request: ResultRequest, inputs: Iterable[str | Path] = (), *, has_page: bool = False) -> tuple[Path, ...]:
    """Return the files that ``--output`` and ``--html`` name, after checking that they can be written.

    ``has_page``: the command makes a page too, so that ``--output`` may name one.

    Raises:
        UsageError: a suffix names no format, or a file is one of the ``inputs``.
        OutputError: one exists already and ``--force`` was not given, or its folder is missing or not writable.
    """
    formats = FORMATS if has_page else TEXT_FORMATS
    return plan(request.html, request.output, force=request.force, inputs=inputs, formats=formats)


def answer_text(
    text: Callable[[], str],
    json: Callable[[], str],
    request: ResultRequest,
    files: Sequence[Path],
    page: Callable[[], str] | None = None,
) -> None:
    """Print a result in the form that was asked for, and write it to the files of ``plan_text``.

    ``page`` makes the HTML page of a command that has one.

    Raises:
        OutputError: a file cannot be written; the result has been printed all the same.
    """
    failure: OutputError | None = None
    text, page = _shown(text, request.lang), _shown(page or text, request.lang)
    for file in files:  # before anything is printed: the reader of standard output may go
        make = {".json": json, ".html": page}.get(_format(file), text)
        try:
            write_file(file, make().rstrip("\n") + "\n", force=request.force)
        except OutputError as error:
            failure = failure or error
    print_result(json() if request.as_json else text(), needed=not files)
    if failure is not None:
        raise failure
    for file in files:
        request.progress.report(f"wrote {printable(file)}")


def _shown(make: Callable[[], str], lang: str) -> Callable[[], str]:
    """Return what makes a text or a page, in a language."""

    def in_language() -> str:
        with language(lang):
            return make()

    return in_language


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
        _leave_quietly()


def _leave_quietly() -> NoReturn:
    # The interpreter flushes stdout once more at exit; that must not raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(READER_GONE)


def plan(
    html: str | None,
    output: str | None,
    *,
    force: bool,
    inputs: Iterable[str | Path] = (),
    formats: Sequence[str] = FORMATS,
) -> tuple[Path, ...]:
    """Return the files that ``--html`` and ``--output`` name, after checking that each can be written.

    ``inputs`` are the files that are read, which no option may name; ``formats`` the suffixes of ``--output``.

    Raises:
        UsageError: a suffix names no format, or two options or an option and an input name one file.
        OutputError: a file exists already and ``force`` is off, or its folder is missing or not writable; or there is
            no file, and standard output is closed.
    """
    paths = tuple(Path(name) for name in (html, output) if name)
    if html and paths[0].suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"Invalid --html '{printable(html)}': the name must end in .html.")
    if output and _format(paths[-1]) not in formats:
        known = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise UsageError(f"Invalid --output '{printable(output)}': the name must end in {known}.")
    check_distinct({"--html": html, "--output": output}, inputs)
    for path in paths:
        check_file(path, force=force)
    if not paths and sys.stdout is None:
        raise OutputError(CLOSED)
    return paths


def render(diagnosis: Diagnosis, path: Path) -> str:
    """Return the report in the format that the suffix of ``path`` asks for."""
    match _format(path):
        case ".html":
            from diagnose.reports import html

            return html.render(diagnosis)
        case ".json":
            from diagnose.reports import json

            return json.render(diagnosis) + "\n"
        case _:
            from diagnose.reports import text

            return text.render(diagnosis)


def write(diagnosis: Diagnosis, paths: Sequence[Path], *, force: bool, lang: str = ENGLISH) -> None:
    """Write the diagnosis to every path that can be written; an existing file is replaced only with ``force``.

    Raises:
        OutputError: a file cannot be written, or has appeared since it was checked; the others were written.
    """
    failures = [failure for path in paths if (failure := _failure(diagnosis, path, force=force, lang=lang))]
    if failures:
        raise failures[0]


def _failure(diagnosis: Diagnosis, path: Path, *, force: bool, lang: str) -> OutputError | None:
    try:
        with language(lang):
            text = render(diagnosis, path)
        write_file(path, text, force=force)
    except OutputError as error:
        return error
    return None


def _format(path: Path) -> str:
    return {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())

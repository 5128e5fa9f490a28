"""From evidence on disk to an answer where it was asked for: read, examine, print, write."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from diagnose.cli import output
from diagnose.errors import OutputError, UsageError
from diagnose.model.files import printable
from diagnose.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["Request", "answer", "examine_paths", "prepare"]

READER_GONE = 141  # as a shell shows SIGPIPE: `diagnose analyze … | head` is no fault


@dataclass(frozen=True, slots=True)
class Request:
    """Where the answer goes."""

    as_json: bool = False
    html: str | None = None
    output: str | None = None
    force: bool = False
    quiet: bool = False
    open_browser: bool = False

    @property
    def progress(self) -> Progress:
        """Return where progress is shown."""
        return Progress(quiet=self.quiet)


def prepare(request: Request, inputs: Sequence[str | Path] = ()) -> tuple[Path, ...]:
    """Return the files to write, after checking all of it that can be checked before the work begins.

    Raises:
        UsageError: the options contradict each other, or name one of the ``inputs``.
        OutputError: a file cannot be written, or exists and may not be overwritten.
    """
    files = output.plan(request.html, request.output, force=request.force, inputs=inputs)
    if request.open_browser and not any(_is_page(file) for file in files):
        raise UsageError("--open shows the HTML report; say with --html FILE where to write it.")
    return files


def examine_paths(paths: Sequence[str | Path], progress: Progress, *, draw: bool = True) -> Diagnosis:
    """Read traces or capture folders and diagnose them.

    Raises:
        InputError: nothing can be read from a path.
    """
    with progress.phase("reading " + ", ".join(str(path) for path in paths[:3]) + (" …" if len(paths) > 3 else "")):
        from diagnose.trace_reader import open_captures

        captures = open_captures(paths)
    with progress.phase("analysing"):
        from diagnose.pipeline.run import examine

        return examine(captures, draw=draw)


def answer(diagnosis: Diagnosis, request: Request, files: Sequence[Path]) -> None:
    """Write the files, print the answer, and say where the files are.

    Raises:
        OutputError: a file cannot be written; the answer has been printed all the same.
    """
    failure: OutputError | None = None
    if files:
        with request.progress.phase("writing " + ", ".join(map(printable, files))):
            try:
                output.write(diagnosis, files, force=request.force)
            except OutputError as error:
                failure = error
    _print(_printed(diagnosis, as_json=request.as_json))
    if failure is not None:
        raise failure
    for file in files:
        request.progress.say(f"wrote {printable(file)}")
    if request.open_browser:
        webbrowser.open(next(file for file in files if _is_page(file)).absolute().as_uri())


def _printed(diagnosis: Diagnosis, *, as_json: bool) -> str:
    if as_json:
        from diagnose.reports import json

        return json.render(diagnosis)
    from diagnose.reports.text import terminal_text

    return terminal_text(diagnosis)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _leave_quietly()
    except UnicodeEncodeError:  # a terminal or a file that is not UTF-8
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _leave_quietly() -> NoReturn:
    # The interpreter flushes stdout once more at exit; that must not raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(READER_GONE)


def _is_page(file: Path) -> bool:
    return file.suffix.lower() in {".html", ".htm"}

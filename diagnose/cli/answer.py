"""From evidence on disk to an answer where it was asked for: read, analyze, print, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli import output
from diagnose.errors import OutputError, UsageError
from diagnose.model.files import printable
from diagnose.reports.language import language
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["Request", "analyze_with_progress", "answer", "check_rules", "chosen", "is_page", "prepare"]


@dataclass(frozen=True, slots=True)
class Request(output.ResultRequest):
    """Where a diagnosis goes."""

    open_browser: bool = False
    verbose: bool = False
    select: tuple[str, ...] = ()  # rules whose findings are shown; without any, all
    ignore: tuple[str, ...] = ()  # rules whose findings are left out

    def chosen(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis without what options and comments leave out."""
        return chosen(diagnosis, self.select, self.ignore)


def check_rules(select: Sequence[str], ignore: Sequence[str]) -> None:
    """Check names of rules before the work begins.

    Raises:
        UsageError: there is no rule of that name.
    """
    if select or ignore:  # the rules take a moment to import
        from diagnose.pipeline.ignoring import RuleChoice

        RuleChoice.of(select, ignore)


def chosen(diagnosis: Diagnosis, select: Sequence[str], ignore: Sequence[str]) -> Diagnosis:
    """Return the diagnosis without what options and comments leave out."""
    from diagnose.pipeline.ignoring import RuleChoice, leave_out

    return leave_out(diagnosis, RuleChoice.of(select, ignore))


def prepare(request: Request, inputs: Sequence[str | Path] = ()) -> tuple[Path, ...]:
    """Return the files to write, after checking all of it that can be checked before the work begins.

    Raises:
        UsageError: the options contradict each other, or name one of the ``inputs``.
        OutputError: a file cannot be written, or exists and may not be overwritten.
    """
    check_rules(request.select, request.ignore)
    files = output.plan(request.html, request.output, force=request.force, inputs=inputs)
    if request.open_browser and not any(is_page(file) for file in files):
        raise UsageError("--open needs an HTML report; add --html FILE.")
    return files


def analyze_with_progress(paths: Sequence[str | Path], progress: Progress, *, draw: bool = True) -> Diagnosis:
    """Read traces or capture folders and diagnose them.

    Raises:
        InputError: nothing can be read from a path.
    """
    with progress.phase("reading " + ", ".join(str(path) for path in paths[:3]) + (" …" if len(paths) > 3 else "")):
        from diagnose.trace_reader import open_captures

        captures = open_captures(paths)
    with progress.phase("analysing"):
        from diagnose.pipeline.run import analyze_captures

        return analyze_captures(captures, draw=draw)


def answer(diagnosis: Diagnosis, request: Request, files: Sequence[Path]) -> None:
    """Write the files, print the answer, and name the files.

    Raises:
        OutputError: a file cannot be written; the answer has been printed all the same.
    """
    diagnosis = request.chosen(diagnosis)
    failure: OutputError | None = None
    if files:
        with request.progress.phase("writing " + ", ".join(map(printable, files))):
            try:
                output.write(diagnosis, files, force=request.force, lang=request.lang)
            except OutputError as error:
                failure = error
    whole = [file for file in files if is_page(file) or file.suffix.lower() == ".json"] if failure is None else []
    output.print_result(_printed(diagnosis, request, whole), needed=not files)
    if failure is not None:
        raise failure
    for file in files:
        request.progress.report(f"wrote {printable(file)}")
    if request.open_browser:
        import webbrowser  # starts with the modules that start processes

        webbrowser.open(next(file for file in files if is_page(file)).absolute().as_uri())


def _printed(diagnosis: Diagnosis, request: Request, written: Sequence[Path]) -> str:
    if request.as_json:
        from diagnose.reports import json

        return json.render(diagnosis)
    from diagnose.reports.text import terminal_text

    with language(request.lang):
        return terminal_text(diagnosis, verbose=request.verbose, written=written)


def is_page(file: Path) -> bool:
    """Return whether a file is to hold a page, by its name."""
    return file.suffix.lower() in {".html", ".htm"}

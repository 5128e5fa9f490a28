"""Where a diagnosis goes: which files, in which format, and whether they can be written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import OutputError, UsageError
from diagnose.model.files import check_distinct, check_file, printable, write_file

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["FORMATS", "plan", "render", "write"]

FORMATS = (".html", ".json", ".txt")


def plan(html: str | None, output: str | None, *, force: bool, inputs: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    """Return the files that ``--html`` and ``--output`` name, after checking that each can be written.

    ``inputs`` are the files that are read, which no option may name.

    Raises:
        UsageError: a suffix names no format, or two options or an option and an input name one file.
        OutputError: a file exists already and ``force`` is off, or its folder is missing or not writable.
    """
    paths = tuple(Path(name) for name in (html, output) if name)
    if html and paths[0].suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"--html writes an HTML page, but {printable(html)} does not end in .html.")
    if output and _format(paths[-1]) not in FORMATS:
        raise UsageError(f"{printable(output)} has no known format; end its name in .html, .json or .txt.")
    check_distinct({"--html": html, "--output": output}, inputs)
    for path in paths:
        check_file(path, force=force)
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


def write(diagnosis: Diagnosis, paths: Sequence[Path], *, force: bool) -> None:
    """Write the diagnosis to every path that can be written; an existing file is replaced only with ``force``.

    Raises:
        OutputError: a file cannot be written, or has appeared since it was checked; the others were written.
    """
    failures = [failure for path in paths if (failure := _failure(diagnosis, path, force=force)) is not None]
    if failures:
        raise failures[0]


def _failure(diagnosis: Diagnosis, path: Path, *, force: bool) -> OutputError | None:
    try:
        write_file(path, render(diagnosis, path), force=force)
    except OutputError as error:
        return error
    return None


def _format(path: Path) -> str:
    return {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())

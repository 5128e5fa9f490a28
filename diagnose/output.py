"""Where a diagnosis goes: which files, whether they can be written, and writing them whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import OutputError, UsageError

if TYPE_CHECKING:
    from diagnose.findings import Diagnosis

__all__ = ["FORMATS", "WIDTH", "check", "plan", "render", "replace_file", "write"]

FORMATS = (".html", ".json", ".txt")
WIDTH = 100  # columns that the text report is laid out for


def plan(html: str | None, output: str | None, *, force: bool) -> tuple[Path, ...]:
    """Return the files that ``--html`` and ``--output`` name, after checking that each can be written.

    Raises:
        UsageError: a suffix names no format, or both options name one file.
        OutputError: a file exists already and ``force`` is off, or its folder is missing or not writable.
    """
    paths = tuple(Path(name) for name in (html, output) if name)
    if html and paths[0].suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"--html writes an HTML page, but {html} does not end in .html.")
    if output and _format(paths[-1]) not in FORMATS:
        raise UsageError(f"{output} has no known format; end its name in .html, .json or .txt.")
    if len({path.absolute() for path in paths}) < len(paths):
        raise UsageError(f"--html and --output both name {html}; leave one of them out.")
    for path in paths:
        check(path, force=force)
    return paths


def check(path: Path, *, force: bool) -> None:
    """Make sure that ``path`` can be written, without writing it.

    Raises:
        OutputError: it exists already and ``force`` is off, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file in it.")
    if os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists already; give another name, or --force to overwrite it.")
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: the folder {path.parent} does not exist; create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: the folder {path.parent} is not writable; choose another one.")


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

            return text.render(diagnosis, width=WIDTH)


def write(diagnosis: Diagnosis, paths: Sequence[Path], *, force: bool) -> None:
    """Write the diagnosis to every path; an existing file is replaced only with ``force``.

    Raises:
        OutputError: a file cannot be written, or has appeared since it was checked.
    """
    for path in paths:
        check(path, force=force)
        replace_file(path, render(diagnosis, path))


def replace_file(target: str | os.PathLike[str], text: str) -> None:
    """Write beside the target and rename, so that nobody ever reads half a report.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(target)
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
            temporary = file.name
            file.write(text)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise OutputError(f"{path} cannot be written: {reason}. Free some space or choose another place.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _format(path: Path) -> str:
    return {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())

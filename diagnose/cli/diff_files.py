"""The diffs of a diagnosis as files beside its page, so that ``git apply`` takes them as they are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import OutputError
from diagnose.model.files import printable, write_file

if TYPE_CHECKING:
    from diagnose.cli.answer import Request
    from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = ["with_diff_files"]


def with_diff_files(diagnosis: Diagnosis, page: Path, request: Request) -> Diagnosis:
    """Write the diffs that the report shows, and return the diagnosis with the commands that apply them.

    A diff is written where it applies in this folder to the script as it stands now. An existing file is replaced with
    ``--force`` only; one that cannot be written is named and left out.
    """
    commands = {}
    for p in _applicable(diagnosis):
        file = page.with_name(f"{page.stem}.{p.id}.diff")
        try:
            write_file(file, p.diff, force=request.force)
        except OutputError as error:
            request.progress.report(f"the diff of {p.id} was not written: {error}")
            continue
        request.progress.report(f"wrote {printable(file)}")
        commands[p.id] = shlex.join(["git", "apply", str(file)])
    found = (replace(p, apply_with=commands.get(p.id, "")) for p in diagnosis.prescriptions)
    return replace(diagnosis, prescriptions=tuple(found))


def _applicable(diagnosis: Diagnosis) -> Iterator[Prescription]:
    """Yield the prescriptions that have a diff which applies here, each of which the page shows."""
    from diagnose.changes.common.separate_diffs import applies_in

    yield from (p for p in diagnosis.prescriptions if p.diff and applies_in(Path.cwd(), p.diff))

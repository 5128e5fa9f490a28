"""The sheet of a reader who does not know which tool gave an answer: a row for all that rules cannot judge.

The rows are ordered by a hash, so neither order nor key tells the tool. The reader fills ``cause`` (right, fair, wrong)
and ``change`` (right, fair, wrong, harmful), and says why. A changed answer has another key and is open again.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yardstick.scoring import Mark

__all__ = ["COLUMNS", "Rows", "key_of", "read_sheet", "with_judgements", "write_sheet"]

COLUMNS = (
    "key",
    "case",
    "true cause",
    "true lines",
    "helps",
    "harms",
    "answered cause",
    "answered places",
    "answered change",
    "cause",
    "change",
    "why",
)
CAUSES = ("right", "fair", "wrong")
CHANGES = ("right", "fair", "wrong", "harmful")
Rows = dict[str, dict[str, str]]


def read_sheet(path: Path) -> Rows:
    """Return the rows of a sheet by key.

    Raises:
        ValueError: a judgement is none of the words.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    for row in rows.values():
        for column, words in (("cause", CAUSES), ("change", CHANGES)):
            if row[column] and row[column] not in words:
                raise ValueError(f"{path.name}, {row['key']}: {column} is {row[column]!r}, not one of {words}")
    return rows


def with_judgements(marks: Sequence[Mark], rows: Mapping[str, Mapping[str, str]]) -> list[Mark]:
    """Return the marks with what a reader judged of those that rules left open."""
    judged = []
    for mark in marks:
        row = rows.get(key_of(mark), {})
        given: dict[str, Any] = {
            part: row[part] for part in ("cause", "change") if getattr(mark, part) == "open" and row.get(part)
        }
        judged.append(replace(mark, **given))
    return judged


def write_sheet(path: Path, marks: Sequence[Mark], rows: Rows) -> int:
    """Add the open marks to a sheet, keep what was filled in, and return how many rows are open."""
    kept = dict(rows)
    for mark in marks:
        if "open" in (mark.cause, mark.change):
            kept.setdefault(key_of(mark), _row(mark))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))
    return sum("open" in (mark.cause, mark.change) for mark in marks)


def key_of(mark: Mark) -> str:
    """Return the key of the row of an answer."""
    told = "|".join((mark.tool, mark.case.id, mark.answer.cause, str(mark.answer.places), mark.answer.change))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _row(mark: Mark) -> dict[str, str]:
    truth, answer = mark.truth, mark.answer
    return {
        "key": key_of(mark),
        "case": mark.case.id,
        "true cause": truth.cause,
        "true lines": ", ".join(f"{file}:{line}" for file, line in truth.lines),
        "helps": "; ".join(truth.helps),
        "harms": "; ".join(truth.harms),
        "answered cause": answer.cause,
        "answered places": ", ".join(f"{file}:{first}" for file, first, _ in answer.places),
        "answered change": answer.change,
        "cause": mark.cause if mark.cause in CAUSES else "",
        "change": "",
        "why": "",
    }

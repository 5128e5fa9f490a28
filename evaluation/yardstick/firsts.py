"""First answers of diagnose to a set that was sealed.

They are written into the truth when the set is opened, as rules judge them. A reader judges the rest on the sheet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from yardstick.readers import ROOT, entries_of, named
from yardstick.scoring import Mark
from yardstick.sealing import has_truth, read_truth
from yardstick.sets import MANIFEST
from yardstick.sheet import Rows, key_of
from yardstick.tools import own

__all__ = ["judged_firsts", "write_firsts"]


def write_firsts(truth: Path, marks: Iterable[Mark]) -> None:
    """Write how rules judge the answers of diagnose into the entries of a truth; what was written stays."""
    listed = json.loads(read_truth(truth))
    entries = named(listed)
    for mark in marks:
        if mark.tool == own.TOOL.name:
            entries[mark.case.name].setdefault("first_answer", _first(mark))
    truth.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _first(mark: Mark) -> dict[str, Any]:
    answer = mark.answer
    return {
        "cause": "silent" if mark.truth.healthy and not mark.failed and not answer.cause else mark.cause,
        "line": mark.line or "none",
        "change": mark.change or "none",
        "predicted_percent": None if answer.saving is None else round(100 * answer.saving, 1),
        "answered": mark.failed or "; ".join(filter(None, (answer.cause, answer.change))),
        "sheet": key_of(mark),
    }


def judged_firsts(rows: Rows, manifest: Path = MANIFEST) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries with a first answer of each opened set, once no answer of the set waits for a reader."""
    found = {}
    for source in json.loads(manifest.read_text(encoding="utf-8")):
        if source["reader"] == "entries" and source["opened"] and has_truth(ROOT / source["truth"]):
            judged = {
                name: entry | {"first_answer": _judged(entry["first_answer"], rows)}
                for name, entry in entries_of(source).items()
                if "first_answer" in entry
            }
            if judged and not any("open" in entry["first_answer"].values() for entry in judged.values()):
                found[source["name"]] = judged
    return found


def _judged(given: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Return a first answer with what a reader judged of it."""
    row = rows.get(given.get("sheet", ""), {})
    return {part: row.get(part) or word if word == "open" else word for part, word in given.items()}

"""The gallery: traces that were recorded on GPUs, what was wrong in each, and how one sees it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnose.model.diagnosis import Diagnosis
from diagnose.text.numbers import duration

__all__ = ["OWN", "SHARED", "Entry", "entries", "page"]

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / "fixtures" / "traces"
SHARED = ROOT.parent / "shared" / "traces"
TEXT = Path(__file__).with_name("gallery.md.in")
NOTE = "<!-- Made by scripts/pictures from the traces and scripts/documentation/gallery.md.in -->"
ENTRY = re.compile(r"^## (.+)\n\n<!-- (\S+) -->\n((?:.+\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A trace of the gallery; ``name`` is a file of the shared folder, or a capture of our own."""

    name: str
    title: str
    seen: str  # how one sees it

    @property
    def path(self) -> Path:
        """Return where the trace lies."""
        own = OWN / self.name
        return own if own.is_dir() else SHARED / f"{self.name}.json.gz"


def entries() -> list[Entry]:
    """Return the traces of the gallery, as its text has them."""
    return [Entry(name, title, seen.strip()) for title, name, seen in ENTRY.findall(TEXT.read_text(encoding="utf-8"))]


def page(answers: dict[str, Diagnosis]) -> str:
    """Return the gallery; ``answers`` holds the diagnosis of each entry."""
    sources = _sources()
    head = TEXT.read_text(encoding="utf-8").partition("\n## ")[0]
    sections = (line for entry in entries() for line in _section(entry, answers[entry.name], sources))
    return "\n".join([NOTE, head, *sections])


def _section(entry: Entry, d: Diagnosis, sources: dict[str, str]) -> Iterator[str]:
    yield f"## {entry.title}\n"
    yield f"![One step of {entry.name}: host, device, causes of idle time and queue depth](pictures/{entry.name}.svg)\n"
    yield f"**{d.headline}**\n"
    yield f"*How one sees it.* {entry.seen}\n"
    if d.dominant:
        yield f"*Rule.* [{d.dominant}](rules.md#{d.dominant}){_change(d)}\n"
    yield f"*Recorded.* {sources.get(entry.name) or _own(entry)}\n"


def _change(d: Diagnosis) -> str:
    first = next((p for p in d.prescriptions if p.rule == d.dominant and not p.records_again), None)
    if first is None:
        return ""
    least, most = (duration(value) for value in first.saves_ns)
    saves = f"up to {most}" if first.saves_ns[0] <= 0 else f"{least} to {most}"
    return f"; first change: [{first.id}](changes.md#{first.id}), {first.title}, which saves {saves} a step."


def _own(entry: Entry) -> str:
    return f"H100, `fixtures/{entry.name.removesuffix('-planted')}.py`; the capture is `fixtures/traces/{entry.name}`."


def _sources() -> dict[str, str]:
    """Return where each published trace comes from, its device and its licence."""
    with (SHARED / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["name"]: f"{_first(row['gpu'])}published in {row['source']}, {row['licence']}." for row in rows}


def _first(gpu: str) -> str:
    return f"{gpu.split('x', 1)[1]}, " if "x" in gpu[:2] else ""

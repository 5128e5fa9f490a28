"""All cases, from the manifest: which sets there are, who wrote them, and when the truth of each was opened."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from yardstick.case import Case, digest
from yardstick.readers import READERS, ROOT
from yardstick.sealing import seal, unseal

__all__ = ["HASHES", "MANIFEST", "Set", "changed", "drawn", "fix", "open_set", "read_sets", "seal_set"]

MANIFEST = ROOT / "evaluation" / "manifest.json"
HASHES = ROOT / "evaluation" / "hashes.json"
Part = Literal["development", "sealed"]


class Set(NamedTuple):
    """One set of cases with one origin."""

    name: str
    title: str
    author: str
    is_blind: bool  # who wrote it knew no tool
    machine: str
    licence: str
    opened: str  # the date; empty as long as the truth is sealed
    cases: tuple[Case, ...]
    truth: Path  # the file or folder that holds it
    absent: str = ""  # why there are no cases

    @property
    def part(self) -> Part:
        """Return "development" from the day on which the truth was opened."""
        return "development" if self.opened else "sealed"


def read_sets(manifest: Path = MANIFEST, hashes: Path = HASHES) -> list[Set]:
    """Return every set of the manifest; a set whose files are not here is empty and has a reason."""
    fixed = _read(hashes)
    sets = []
    for source in _read(manifest):
        names = None if source["opened"] or source["name"] not in fixed else list(fixed[source["name"]])
        cases = READERS[source["reader"]](source, names)
        absent = "" if cases else f"{source['truth']} is not here"
        sets.append(
            Set(
                source["name"],
                source["title"],
                source["author"],
                source["is_blind"],
                source["machine"],
                source["licence"],
                source["opened"],
                tuple(cases),
                ROOT / source["truth"],
                absent,
            )
        )
    return sets


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def changed(cases: Sequence[Case], hashes: Path = HASHES) -> list[str]:
    """Return the ids of the cases whose hash is not the one that was fixed; only sets of others have hashes."""
    fixed: Mapping[str, Mapping[str, str]] = _read(hashes)
    return [
        case.id
        for case in cases
        if case.is_here and case.set in fixed and fixed[case.set].get(case.name) != digest(case)
    ]


def fix(chosen: Set, hashes: Path = HASHES) -> None:
    """Write the hashes of a set, once, before any tool runs.

    Raises:
        ValueError: the set has hashes.
    """
    fixed = _read(hashes)
    if chosen.name in fixed:
        raise ValueError(f"{chosen.name} has hashes: its truth was fixed before")
    fixed[chosen.name] = {case.name: digest(case) for case in chosen.cases if case.is_here}
    hashes.write_text(json.dumps(fixed, indent=1) + "\n", encoding="utf-8")


def seal_set(chosen: Set, every: Sequence[Set]) -> None:
    """Pack the truth of a set.

    Raises:
        ValueError: the set was opened, or another set has its truth in the same file.
    """
    if chosen.opened:
        raise ValueError(f"{chosen.name} was opened on {chosen.opened}")
    if any(each.truth == chosen.truth and each.name != chosen.name for each in every):
        raise ValueError(f"{chosen.truth.name} of {chosen.name} holds the truth of other sets too")
    seal(chosen.truth)


def open_set(name: str, date: str, manifest: Path = MANIFEST) -> None:
    """Unpack the truth of a set and write down when it was opened: from then on it is development data."""
    sources = _read(manifest)
    for source in sources:
        if source["name"] == name:
            source["opened"] = date
            unseal(ROOT / source["truth"])
    manifest.write_text(json.dumps(sources, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def drawn(cases: Sequence[Case], number: int, seed: int) -> list[Case]:
    """Return so many of the cases that can run here, the same ones for each tool."""
    able = [case for case in cases if not case.missing]
    return sorted(random.Random(seed).sample(able, min(number, len(able))), key=lambda case: case.id)

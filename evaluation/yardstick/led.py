"""The cases that led to a rule or to a limit of a decision: that they are answered right shows nothing about either."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from yardstick.readers import ROOT

__all__ = ["LED", "NO_CASES", "SILENCE", "Led", "read_led"]

LED = ROOT / "evaluation" / "led.json"
SILENCE = "none"  # as in a truth: the answer that nothing is worth changing


class Led(NamedTuple):
    """Ids of the cases that were in view and led to a rule or a limit, or changed it."""

    rules: Mapping[str, frozenset[str]]  # by id of docs/rules.md, or SILENCE
    limits: Mapping[str, frozenset[str]]  # by module and name; rules share limits, so each may decide any answer

    def holds(self, case: str, rules: Iterable[str]) -> bool:
        """Return whether a case led to one of the rules, or to a limit."""
        chosen = [self.rules.get(rule, frozenset()) for rule in rules]
        return any(case in cases for cases in (*chosen, *self.limits.values()))


NO_CASES = Led({}, {})


def read_led(path: Path = LED) -> Led:
    """Return what the file names."""
    told = json.loads(path.read_text(encoding="utf-8"))
    rules, limits = ({name: frozenset(cases) for name, cases in told[part].items()} for part in ("rules", "limits"))
    return Led(rules, limits)

"""diagnose: the first finding, its place, and the first card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.led import read_led
from yardstick.processes import ended, last_line
from yardstick.readers import ROOT
from yardstick.tools.tool import Tool

__all__ = ["TOOL"]


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    result = folder / "answer.json"
    if isinstance(subject, Script):
        cwd = subject.copied(folder)
        command = [str(python), *subject.launcher, "-m", "diagnose", "trace", "-q", "-o", str(result), *subject.words]
    else:
        cwd = folder
        command = [str(python), "-m", "diagnose", "analyze", "-q", "-o", str(result), str(subject.found(folder))]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    run = ended(command, cwd, environment={"PYTHONPATH": path, "DIAGNOSE_NO_CACHE": "1"})
    if not result.is_file():
        raise NoAnswerError(last_line(run))
    return result.read_text(encoding="utf-8")


def _read(raw: str) -> Answer:
    found: dict[str, Any] = json.loads(raw)
    first = next((each for each in found["findings"] if each["rule"] == found["dominant"]), None)
    if first is None:
        return Answer()
    cards = found["answer"]["cards"]
    card = next((each for each in found["prescriptions"] if cards and each["id"] == cards[0]), None)
    places = [*first["where"][:1], *(card["edits"][:1] if card else ())]
    return Answer(
        cause=first["title"],
        names=(first["rule"],),
        places=tuple(
            (Path(each["file"]).name, each["line"], each["last_line"] or each["line"])
            for each in places
            if each["file"] and each["line"]
        ),
        change=card["title"] if card else "",
        change_id=card["id"] if card else "",
        saving=sum(card["saves_ms"]) / 2 / found["step_ms"] if card else None,
    )


TOOL = Tool(
    name="diagnose",
    form="`diagnose trace SCRIPT`, `diagnose analyze RECORDING`; the first finding and the first card",
    kinds=("script", "recording"),
    answers=("cause", "line", "change", "saving", "silence"),
    ask=_ask,
    read=_read,
    led=read_led(),
)

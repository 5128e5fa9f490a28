"""hotpath: a linter; its first warning, and of several the one with the largest impact. Hints are no answer."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import LOADING
from yardstick.tools.tool import Tool

__all__ = ["TOOL"]

IMPACTS = ("high", "medium", "low")
CAUSES = {
    "KP001": LOADING[:1],
    "KP003": ("host-sync", "host-round-trip"),
    "KP004": ("exposed-copy", "pcie-bound", "host-round-trip"),
    "KP005": ("exposed-copy", "host-round-trip"),
    "KP006": ("unfused-attention",),
    "KP011": ("allocator-stall",),
    "KP012": ("dead-work",),
    "KP013": ("computed-again",),
    "KP017": ("host-sync", "host-round-trip"),
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    assert isinstance(subject, Script), "the tool takes scripts"
    run = ended((str(python.with_name("hotpath")), "analyze", str(subject.file), "--format", "json"), folder)
    if not run.stdout:
        raise NoAnswerError(last_line(run))
    return run.stdout


def _read(raw: str) -> Answer:
    listed = [
        (IMPACTS.index(each["impact"]), each["line"], Path(file["path"]).name, each)
        for file in json.loads(raw)["files"]
        for each in file["findings"]
        if each["severity"] != "info"
    ]
    if not listed:
        return Answer()
    _, line, file, first = min(listed, key=lambda each: each[:2])
    return Answer(first["title"], CAUSES.get(first["rule_id"], ()), ((file, line, line),), first["recommendation"])


TOOL = Tool(
    name="hotpath",
    form="`hotpath analyze SCRIPT --format json`; the first warning of the largest impact",
    kinds=("script",),
    answers=("cause", "line", "change", "silence"),
    ask=_ask,
    read=_read,
    requirements=("hotpath-ai==0.1.0",),
)

"""gpu-idle: its first finding; none means that the GPU is kept busy."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import COPIES, HOST, LAUNCHES, LOADING
from yardstick.tools.tool import Tool, timed_trace, unpacked

__all__ = ["TOOL"]

CAUSES = {
    "dataloader": LOADING[:1],
    "smallbatch": LAUNCHES[:1],
    "h2d_copy": COPIES[:1],
    "unattributed": tuple(name for name in HOST if name not in LOADING),
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    trace = unpacked(timed_trace(subject, folder), folder)
    run = ended((str(python.with_name("gpu-idle")), str(trace), "--json"), folder)
    if run.returncode:
        raise NoAnswerError(last_line(run))
    return run.stdout


def _read(raw: str) -> Answer:
    findings = json.loads(raw)["findings"]
    if not findings:
        return Answer()
    first = findings[0]
    return Answer(first["evidence"], CAUSES[first["cause"]], change=first["fix"])


TOOL = Tool(
    name="gpu-idle",
    form="`gpu-idle TRACE --json`; the first finding",
    kinds=("recording",),
    answers=("cause", "change", "silence"),
    ask=_ask,
    read=_read,
    requirements=("gpu-idle==0.1.0",),
)

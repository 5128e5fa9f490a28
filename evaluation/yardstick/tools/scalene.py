"""Scalene: the line of the script's own files with the largest share of the time."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.tool import Tool, plain_script

__all__ = ["TOOL"]

TIMES = ("n_cpu_percent_python", "n_cpu_percent_c", "n_sys_percent")


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    cwd = plain_script(subject, folder)
    assert isinstance(subject, Script), "the tool takes scripts"
    profile = folder / "profile.json"
    command = (str(python.with_name("scalene")), "run", "--cpu-only", "-o", str(profile), subject.file.name)
    run = ended((*command, "---", *subject.arguments), cwd)
    if not profile.is_file():
        raise NoAnswerError(last_line(run))
    kept = {
        Path(file).name: {str(line["lineno"]): sum(line[time] for time in TIMES) for line in found["lines"]}
        for file, found in json.loads(profile.read_text(encoding="utf-8")).get("files", {}).items()
    }
    return json.dumps(kept)


def _read(raw: str) -> Answer:
    shares = [(share, file, int(line)) for file, lines in json.loads(raw).items() for line, share in lines.items()]
    if not shares:
        raise NoAnswerError("no line of the script has time")
    share, file, line = max(shares)
    return Answer(f"{share:.0f}% of the time at {file}:{line}", places=((file, line, line),))


TOOL = Tool(
    name="scalene",
    form="`scalene run --cpu-only SCRIPT`; the line with the largest share of CPU time",
    kinds=("script",),
    answers=("line",),
    ask=_ask,
    read=_read,
    requirements=("scalene==2.4.0",),
    needs_torch=True,
)

"""py-spy: the line of the script's own files with the most samples."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.tool import Tool, plain_script

__all__ = ["TOOL"]

FRAME = re.compile(r"\(([^()]+\.py):(\d+)\)$")


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    cwd = plain_script(subject, folder)
    assert isinstance(subject, Script), "the tool takes scripts"
    samples = folder / "samples.txt"
    command = (str(python.with_name("py-spy")), "record", "-f", "raw", "--full-filenames", "-o", str(samples), "--")
    run = ended((*command, str(python), *subject.words), cwd)
    if not samples.is_file():
        raise NoAnswerError(last_line(run))
    return "\n".join(_shortened(samples.read_text(encoding="utf-8"), cwd))


def _shortened(samples: str, folder: Path) -> list[str]:
    """Return the innermost line of each stack that is in the folder, with its samples; imports are left out."""
    counts: Counter[str] = Counter()
    for stack in samples.splitlines():
        frames, _, number = stack.rpartition(" ")
        if "importlib" in frames:
            continue
        found = [(folder / match[1], match[2]) for frame in frames.split(";") if (match := FRAME.search(frame))]
        places = [f"{file.name}:{line}" for file, line in found if file.is_relative_to(folder)]
        if places:
            counts[places[-1]] += int(number)
    return [f"{place} {number}" for place, number in counts.most_common()]


def _read(raw: str) -> Answer:
    if not raw:
        raise NoAnswerError("no sample of the script's own lines")
    place, _, _ = raw.splitlines()[0].rpartition(" ")
    file, _, line = place.rpartition(":")
    return Answer(f"most samples at {place}", places=((file, int(line), int(line)),))


TOOL = Tool(
    name="py-spy",
    form="`py-spy record -f raw -- python SCRIPT`; the script's line with the most samples, imports left out",
    kinds=("script",),
    answers=("line",),
    ask=_ask,
    read=_read,
    requirements=("py-spy==0.4.3",),
    needs_torch=True,
)

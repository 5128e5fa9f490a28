"""The TensorBoard plugin: the first of the recommendations of its overview."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import COLLECTIVES, HOST, LOADING
from yardstick.tools.tool import Tool, timed_trace

__all__ = ["TOOL"]

QUESTION = """
import json, re, sys
from torch_tb_profiler.profiler.data import RunProfileData
data = RunProfileData.parse("worker0", None, sys.argv[1], sys.argv[2])
print(json.dumps([re.sub("<[^>]*>", "", each) for each in data.recommendations]))
"""
CAUSES = {
    "input data loading": LOADING[:1],
    "time cost on communication": COLLECTIVES,
    "low utilization": HOST,
    "Tensor Cores eligible": ("full-precision-matmul",),
    "memory usage is at the limit": ("memory-pressure",),
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    cache = folder / "cache"
    cache.mkdir()
    run = ended((str(python), "-c", QUESTION, str(timed_trace(subject, folder)), str(cache)), folder)
    if run.returncode:
        raise NoAnswerError(last_line(run))
    return run.stdout


def _read(raw: str) -> Answer:
    recommended = json.loads(raw.splitlines()[-1])
    if not recommended:
        return Answer()
    first = recommended[0]
    names = next((found for words, found in CAUSES.items() if words in first), ())
    cause, _, change = first.partition("You could")
    return Answer(cause.strip() or first, names, change=f"You could{change}" if change else first)


TOOL = Tool(
    name="tensorboard",
    form="`RunProfileData.parse`, which the plugin's overview shows; the first recommendation",
    kinds=("recording",),
    answers=("cause", "change", "silence"),
    ask=_ask,
    read=_read,
    requirements=("torch-tb-profiler==0.4.3", "setuptools<81"),
)

"""Fournex: the primary bottleneck and the first recommendation of a run that was collected with its SDK's marks."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import COPIES, HOST, LAUNCHES, LOADING
from yardstick.tools.marking import mark
from yardstick.tools.tool import Tool, plain_script

__all__ = ["TOOL"]

SETUP = """
import itertools
import fournex as frx
frx.init(job_name="train")
frx_steps = itertools.count()
def frx_source(source):
    return source if isinstance(source, frx.InstrumentedDataLoader) else frx.instrument_dataloader(source)
"""
STEP = "frx.step_context(step=next(frx_steps), model={model})"
CAUSES = {
    "input_bound": LOADING,
    "copy_bound": COPIES,
    "sync_bound": ("host-sync", "host-round-trip"),
    "underutilized_gpu": HOST,
    "memory_pressure": ("memory-pressure",),
    "shape_instability": ("recompilation",),
    "launch_bound": LAUNCHES,
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    cwd = plain_script(subject, folder)
    assert isinstance(subject, Script), "the tool takes scripts"
    mark(cwd / subject.file.name, SETUP, STEP, source="frx_source", loader="frx.instrument_dataloader")
    command = (str(python.with_name("frx")), "collect", "--name", "run", "--run-id", "one", "--no-zip")
    run = ended((*command, "--", str(python), subject.file.name, *subject.arguments), cwd)
    bundle = next(iter(sorted((cwd / "runs").glob("*"))), None)
    if bundle is None:
        raise NoAnswerError(last_line(run))
    analyzed = ended((str(python.with_name("frx")), "analyze", str(bundle), "--json"), cwd)
    if "{" not in analyzed.stdout:
        raise NoAnswerError(analyzed.stdout.strip()[:200] or last_line(analyzed))
    found = json.loads(analyzed.stdout)["result"].get("run")
    if found is None:
        raise NoAnswerError(f"no step was recorded: {last_line(run)}")
    return json.dumps(found["diagnosis"])


def _read(raw: str) -> Answer:
    found = json.loads(raw)
    label = found["primary_bottleneck"]
    if label == "inconclusive":
        return Answer()
    if label not in CAUSES:
        raise NoAnswerError(str(label or "no bottleneck is named"))
    recommended = next(iter(found["recommendations"]), None)
    return Answer(label, CAUSES[label], change=recommended["title"] if recommended else "")


TOOL = Tool(
    name="fournex",
    form="`frx collect -- python SCRIPT` with `step_context` and `instrument_dataloader` in the script, then "
    "`frx analyze`; the primary bottleneck and the first recommendation",
    kinds=("script",),
    answers=("cause", "change", "silence"),
    ask=_ask,
    read=_read,
    requirements=("fournex==0.3.1",),
    needs_torch=True,
)

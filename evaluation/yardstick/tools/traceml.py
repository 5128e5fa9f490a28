"""TraceML: the primary diagnosis of a run whose steps are marked as its quickstart has it for a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import COPIES, HOST, LOADING, VALUES
from yardstick.tools.marking import mark
from yardstick.tools.tool import Tool, plain_script

__all__ = ["TOOL"]

SETUP = """
import traceml_ai as traceml
from torch.utils.data import DataLoader as TorchLoader
traceml.init(mode="auto")
def traceml_source(source):
    return source if isinstance(source, TorchLoader) else traceml.wrap_dataloader_fetch(source)
"""
STEP = "traceml.trace_step({model})"
CAUSES = {
    "INPUT_BOUND": LOADING,
    "H2D_BOUND": COPIES,
    "RESIDUAL_HEAVY": (*(name for name in HOST if name not in LOADING), *VALUES),
    "INPUT_STRAGGLER": ("straggler",),
    "COMPUTE_STRAGGLER": ("straggler",),
    "H2D_STRAGGLER": ("straggler",),
    "STRAGGLER": ("straggler",),
    "LOW_GPU_UTILIZATION_UNEXPLAINED": HOST,
}
# The last one is "informational when no material overhead is visible", by its documentation.
SILENT = ("NO_CLEAR_PERFORMANCE_BOTTLENECK", "BALANCED", "COMPUTE_BOUND")


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    cwd = plain_script(subject, folder)
    assert isinstance(subject, Script), "the tool takes scripts"
    mark(cwd / subject.file.name, SETUP, STEP, source="traceml_source")
    command = (str(python.with_name("traceml")), "run", subject.file.name, "--run-name", "run")
    run = ended((*command, "--args", *subject.arguments), cwd)
    summary = cwd / "logs" / "run" / "final_summary.json"
    if not summary.is_file():
        raise NoAnswerError(last_line(run))
    return json.dumps(json.loads(summary.read_text(encoding="utf-8"))["primary_diagnosis"])


def _read(raw: str) -> Answer:
    found = json.loads(raw)
    kind = found["kind"]
    if kind in SILENT:
        return Answer()
    if kind not in CAUSES:
        raise NoAnswerError(found["status"])
    return Answer(f"{found['status']}: {found['summary']}", CAUSES[kind], change=found.get("action") or "")


TOOL = Tool(
    name="traceml",
    form="`traceml run SCRIPT`, with `traceml.init`, `trace_step` around the step, and `wrap_dataloader_fetch` around "
    "what the loop runs over if that is no DataLoader; the primary diagnosis",
    kinds=("script",),
    answers=("cause", "change", "silence"),
    ask=_ask,
    read=_read,
    requirements=("traceml-ai==0.5.0",),
    needs_torch=True,
)

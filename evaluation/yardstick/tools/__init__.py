"""The tools: one file each, with how it is asked and how its answer is read. A new one is added to ``TOOLS``."""

from __future__ import annotations

from yardstick.tools import (
    fournex,
    gpu_idle,
    holistic,
    hotpath,
    own,
    py_spy,
    scalene,
    tensorboard,
    tracelens,
    traceml,
)
from yardstick.tools.tool import Tool

__all__ = ["NOT_RUN", "TOOLS", "Tool"]

TOOLS: dict[str, Tool] = {
    each.TOOL.name: each.TOOL
    for each in (own, holistic, gpu_idle, tensorboard, tracelens, traceml, fournex, hotpath, scalene, py_spy)
}
NOT_RUN = {
    "nsys-ai 0.3.0": "reads profiles of Nsight Systems only, and no case has one",
    "TraceLens Agent": "needs a language model; the report that it starts from was run",
    "profine 0.5.1": "runs scripts on rented GPUs of Modal and needs a language model",
    "loadtune 0.3.0": "takes a `Workload` that is written for it: dataset, model and step as functions, no script",
    "datapath-doctor 0.2.1": "looks at the input path of storage; its profiler object has to be fed by the loop",
    "mldoctor 1.0.0 (package index)": "examines data sets, not training speed",
    "tracelens 0.7.0 (package index)": "is a test framework for agents, not AMD's TraceLens",
    "Nsight Systems": "not in the package index; needs a GPU to record with",
}

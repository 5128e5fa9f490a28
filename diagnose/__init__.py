"""Says why a PyTorch training step is slow, on which line, and what to change.

    diagnosis = diagnose.analyze(train_step)            # a function that runs one step
    with diagnose.trace() as t: ... t.step()            # a loop of one's own
    diagnosis = diagnose.analyze_trace("trace.json.gz") # what torch.profiler recorded
    diagnosis = diagnose.prove(make_train_step)         # applies what it prescribes, and measures
    with diagnose.watch("name") as w: ... w.step()      # a long run: what becomes slower, and why
    diagnose.step()                                     # marks a step for the command `diagnose trace`

Names are imported when first used: importing ``diagnose`` imports neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.api import (
        Diagnosis,
        Finding,
        Note,
        Partition,
        Prescription,
        Queue,
        RankSummary,
        Tracing,
        Trial,
        Where,
        analyze,
        analyze_trace,
        prove,
        trace,
        watch,
    )
    from diagnose.capture.step_marker import step
    from diagnose.errors import (
        CaptureError,
        DiagnoseError,
        InputError,
        NotATraceError,
        OriginalsChangedError,
        OutputError,
        UsageError,
    )
    from diagnose.monitor.long_run import Watch

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "DiagnoseError",
    "Diagnosis",
    "Finding",
    "InputError",
    "NotATraceError",
    "Note",
    "OriginalsChangedError",
    "OutputError",
    "Partition",
    "Prescription",
    "Queue",
    "RankSummary",
    "Tracing",
    "Trial",
    "UsageError",
    "Watch",
    "Where",
    "__version__",
    "analyze",
    "analyze_trace",
    "prove",
    "step",
    "trace",
    "watch",
]


_ELSEWHERE = {"step": "diagnose.capture.step_marker", "Watch": "diagnose.monitor.long_run"}


def _home(name: str) -> str:
    """Return the module that a public name is imported from."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    return "diagnose.errors" if name.endswith("Error") else "diagnose.api"


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    return getattr(import_module(_home(name)), name)


def __dir__() -> list[str]:
    """List the public names, imported or not, and nothing else."""
    return list(__all__)

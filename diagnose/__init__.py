"""Says why a PyTorch training step is slow, on which line, and what to change.

    diagnosis = diagnose.analyze(train_step)            # a function that runs one step
    with diagnose.trace() as t: ... t.step()            # a loop of one's own
    diagnosis = diagnose.analyze_trace("trace.json.gz") # what torch.profiler recorded
    diagnosis = diagnose.prove(make_train_step)         # applies what it prescribes, and measures
    diagnose.step()                                     # marks a step for the command `diagnose trace`

Names are imported when first used: importing ``diagnose`` imports neither numpy nor torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.api import Tracing, analyze, analyze_trace, trace
    from diagnose.capture.step_marker import step
    from diagnose.errors import CaptureError, DiagnoseError, InputError, NotATraceError, OutputError, UsageError
    from diagnose.model.diagnosis import Diagnosis, Finding, Prescription
    from diagnose.trials.step_function import prove

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "DiagnoseError",
    "Diagnosis",
    "Finding",
    "InputError",
    "NotATraceError",
    "OutputError",
    "Prescription",
    "Tracing",
    "UsageError",
    "__version__",
    "analyze",
    "analyze_trace",
    "prove",
    "step",
    "trace",
]

_HOMES = {
    "diagnose.api": ("Tracing", "analyze", "analyze_trace", "trace"),
    "diagnose.errors": (
        "CaptureError",
        "DiagnoseError",
        "InputError",
        "NotATraceError",
        "OutputError",
        "UsageError",
    ),
    "diagnose.model.diagnosis": ("Diagnosis", "Finding", "Prescription"),
    "diagnose.capture.step_marker": ("step",),
    "diagnose.trials.step_function": ("prove",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``diagnose.trace`` the function: importing the submodule of that name would replace it."""

    @property
    def trace(self) -> object:
        return __getattr__("trace")

    @trace.setter
    def trace(self, module: ModuleType) -> None:
        """Drop what the import system sets; ``from diagnose.trace import …`` does not need it."""


sys.modules[__name__].__class__ = _Package

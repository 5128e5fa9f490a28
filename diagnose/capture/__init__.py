"""Watches a few steps of a running script and writes them into a capture folder.

    trace_script(["train.py", "--epochs", "3"], CaptureOptions(output=Path("capture")))
    capture_steps(step_fn, steps=10)
    with Tracer(CaptureOptions(output=Path("capture"))) as tracer: ... tracer.step()

Importing this package does not import torch.
"""

from __future__ import annotations

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.run import CaptureResult, Tracer, capture_steps, trace_script
from diagnose.model.limits import StepOn

__all__ = ["CaptureOptions", "CaptureResult", "StepOn", "Tracer", "capture_steps", "trace_script"]

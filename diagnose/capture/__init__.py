"""Watches a few steps of a running script and writes them into a capture folder."""

from __future__ import annotations

from diagnose.capture.options import CaptureOptions, StepOn

__all__ = ["CaptureOptions", "StepOn"]

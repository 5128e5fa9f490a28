"""Reading traces and captures into memory. Nothing here imports torch."""

from __future__ import annotations

from diagnose.reading.file import read_trace
from diagnose.reading.folders import open_captures

__all__ = ["open_captures", "read_trace"]

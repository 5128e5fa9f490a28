"""Reading traces and captures into memory. Nothing here imports torch."""

from __future__ import annotations

from diagnose.trace_reader.documents import read_info
from diagnose.trace_reader.file import read_trace
from diagnose.trace_reader.folders import open_captures

__all__ = ["open_captures", "read_info", "read_trace"]

"""Reading traces and captures into memory. Nothing here imports torch."""

from __future__ import annotations

from diagnose.reading.file import read_trace

__all__ = ["read_trace"]

"""Watching the GPUs of a machine through NVML: a live table, rows as CSV, percentiles and series as JSON."""

from __future__ import annotations

from diagnose.monitor.watch import MonitorRequest, watch

__all__ = ["MonitorRequest", "watch"]

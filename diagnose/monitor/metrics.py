"""Rows of a long run as metrics of Prometheus, through its official client library.

Nothing is served unless that is asked for, and on the loopback unless an address is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from diagnose.capture.process.process import rank_and_size, ranks_on_this_node
from diagnose.errors import OutputError, UsageError, missing_extra
from diagnose.monitor.step_rows import Row

HELP = {
    "steps": "steps since the run began",
    "step_seconds": "time of a step over the latest row: mean, median, percentiles, longest",
    "phase_seconds": "time of a step in this phase over the latest row, mean",
    "process_memory_bytes": "memory of the process",
    "tensor_memory_bytes": "memory of tensors on the current device",
    "reserved_memory_bytes": "memory that torch's allocator has reserved on the current device",
    "gpu_kernel_running_ratio": "share of NVML's sampling period in which a kernel was running",
    "gpu_sm_clock_hertz": "clock of the multiprocessors",
    "gpu_power_watts": "power",
    "gpu_temperature_celsius": "temperature of the chip",
    "gpu_memory_used_bytes": "memory in use, of all processes",
    "windows": "windows recorded, because steps became slower or on demand",
}
COUNTERS = {"steps", "windows"}
OF_NVML = {  # its name in a row, and what turns it into the base unit
    "kernel_running_percent": ("gpu_kernel_running_ratio", 0.01),
    "sm_mhz": ("gpu_sm_clock_hertz", 1e6),
    "power_w": ("gpu_power_watts", 1.0),
    "temperature_c": ("gpu_temperature_celsius", 1.0),
    "memory_used_mb": ("gpu_memory_used_bytes", 1e6),
}


def address_of(text: str) -> tuple[str, int]:
    """Return address and port of "PORT", which is the loopback's, or "ADDRESS:PORT".

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
        raise UsageError(f"Invalid address '{text}' for Prometheus: give PORT or ADDRESS:PORT.")
    return host.strip("[]") or "127.0.0.1", int(port)


class Point(NamedTuple):
    """One value of one metric, in base units; ``label`` tells apart what has the same name."""

    name: str
    value: float
    label: tuple[str, str] | None = None


def points(row: Row | None, num_steps: int, num_windows: int) -> list[Point]:
    """Return what a run's latest row holds; before the first row only the counters."""
    found = [Point("steps", num_steps), Point("windows", num_windows)]
    if row is None:
        return found
    times = {"mean": row.mean_ns, "p50": row.p50_ns, "p90": row.p90_ns, "p99": row.p99_ns, "max": row.max_ns}
    found += [Point("step_seconds", ns / 1e9, ("statistic", name)) for name, ns in times.items()]
    found += [Point("phase_seconds", ns / 1e9 / row.steps, ("phase", name)) for name, ns in row.phases.items()]
    readings = row.readings
    memory = {
        "process_memory_bytes": readings.rss_mb,
        "tensor_memory_bytes": readings.allocated_mb,
        "reserved_memory_bytes": readings.reserved_mb,
    }
    found += [Point(name, mb * 1e6) for name, mb in memory.items() if mb is not None]
    for gpu in readings.gpus:
        for key, (name, unit) in OF_NVML.items():
            value = gpu.get(key)
            if isinstance(value, (int, float)):
                found.append(Point(name, value * unit, ("gpu", str(gpu.get("index")))))
    return found


class Metrics:
    """Serves the latest values of this rank; a scrape reads them on a thread of the server's.

    Each rank of a machine serves at a port of its own.

    Raises:
        InputError: the client library is not installed.
        OutputError: the port cannot be served at.
    """

    def __init__(self, address: tuple[str, int], read: Callable[[], list[Point]], *, run: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise missing_extra("Metrics are to be served for Prometheus", "metrics") from None
        rank, world_size = rank_and_size()
        host, port = address[0], address[1] + rank % max(1, ranks_on_this_node(world_size))
        labels = {"run": run, "rank": str(rank)}
        registry = CollectorRegistry()
        self._labels, self._read = labels, read
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise OutputError(f"Metrics cannot be served at {host}:{port} ({error}): choose another port.") from error

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric, as the client library asks for it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        by_name: dict[str, list[Point]] = {}
        for point in self._read():
            by_name.setdefault(point.name, []).append(point)
        for name, values in by_name.items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            own = [values[0].label[0]] if values[0].label else []
            family = kind(f"diagnose_{name}", HELP[name], labels=[*self._labels, *own])
            for point in values:
                family.add_metric([*self._labels.values(), *([point.label[1]] if point.label else [])], point.value)
            yield family

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""Rows of a long run as metrics of Prometheus and OpenTelemetry, through their official client libraries.

Nothing is served or sent unless that is asked for; Prometheus is served on the loopback unless an address is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from diagnose.capture.process.process import rank_and_size, ranks_on_this_node
from diagnose.errors import OutputError, UsageError, missing_extra
from diagnose.monitor.step_rows import Row

LOOPBACK = "127.0.0.1"
OTLP_TIMEOUT_S = 3  # of one export: the end of a run waits for the last one
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


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where metrics go; nowhere by default.

    Raises:
        UsageError: an address that is none.
    """

    prometheus: str = ""  # "PORT" on the loopback, or "ADDRESS:PORT", to serve at
    otlp: str = ""  # URL of a collector that takes OTLP over HTTP, with its path

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        if self.prometheus:
            _ = self.address
        parts = urlsplit(self.otlp)
        if self.otlp and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UsageError("Invalid URL of a collector: give one such as http://127.0.0.1:4318/v1/metrics.")

    @property
    def address(self) -> tuple[str, int]:
        """Return address and port that Prometheus reads from."""
        host, _, port = self.prometheus.rpartition(":")
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise UsageError(f"Invalid address '{self.prometheus}' for Prometheus: give PORT or ADDRESS:PORT.")
        return host.strip("[]") or LOOPBACK, int(port)


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric, in base units; ``label`` tells apart what has the same name."""

    name: str
    value: float
    label: tuple[str, str] | None = None


class Exporter(Protocol):
    """One destination."""

    def close(self) -> None:
        """Hand the last values over and end."""


Read = Callable[[], list[Point]]


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


def begin_metrics(options: MetricsOptions, read: Read, *, run: str) -> list[Exporter]:
    """Begin to serve and to send for this rank, as ``exporters`` does."""
    rank, world_size = rank_and_size()
    return exporters(options, read, run=run, rank=rank, local_rank=rank % max(1, ranks_on_this_node(world_size)))


def exporters(options: MetricsOptions, read: Read, *, run: str, rank: int, local_rank: int) -> list[Exporter]:
    """Begin to serve and to send what ``read`` returns; each rank of a machine serves at a port of its own.

    Raises:
        InputError: a client library is not installed.
        OutputError: the port cannot be served at.
    """
    labels = {"run": run, "rank": str(rank)}
    found: list[Exporter] = []
    if options.prometheus:
        host, port = options.address
        found.append(_Prometheus(host, port + local_rank, labels, read))
    if options.otlp:
        found.append(_Otlp(options.otlp, labels, read))
    return found


class _Prometheus:
    """Serves the latest values; a scrape reads them on a thread of the server's."""

    def __init__(self, host: str, port: int, labels: dict[str, str], read: Read) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise missing_extra("Metrics are to be served for Prometheus", "metrics") from None
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


class _Otlp:
    """Sends the latest values to a collector, on a thread of OpenTelemetry's."""

    def __init__(self, url: str, labels: dict[str, str], read: Read) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise missing_extra("Metrics are to be sent by OpenTelemetry", "metrics") from None
        sender = OTLPMetricExporter(endpoint=url, timeout=OTLP_TIMEOUT_S)
        reader = PeriodicExportingMetricReader(
            sender, export_interval_millis=10_000, export_timeout_millis=OTLP_TIMEOUT_S * 1e3
        )
        resource = Resource.create({"service.name": "diagnose", **{f"diagnose.{k}": v for k, v in labels.items()}})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._read = read
        meter = self._provider.get_meter("diagnose")
        for name, text in HELP.items():
            make = meter.create_observable_counter if name in COUNTERS else meter.create_observable_gauge
            make(f"diagnose.{name}", callbacks=[self._observe(name)], description=text)

    def _observe(self, name: str) -> Callable[[Any], list[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_options: Any) -> list[Any]:
            return [
                Observation(point.value, dict([point.label]) if point.label else {})
                for point in self._read()
                if point.name == name
            ]

        return observe

    def close(self) -> None:
        """Send the last values, within the timeout."""
        self._provider.shutdown(timeout_millis=OTLP_TIMEOUT_S * 1e3)

"""Metrics of a watch through the official client libraries, read back as Prometheus and a collector read them."""

import gzip
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from diagnose.errors import OutputError, UsageError
from diagnose.monitor.metrics import MetricsOptions, exporters, points
from diagnose.monitor.step_rows import Readings, Row

GPU = {"index": 3, "power_w": 250, "sm_mhz": 1410, "kernel_running_percent": 80, "slowed_by": []}
ROW = Row(
    step=100, time_s=5.0, steps=50, mean_ns=2e6, p50_ns=1e6, p90_ns=3e6, p99_ns=4e6, max_ns=5e6,
    phases={"loading": 10_000_000}, readings=Readings(rss_mb=12.5, gpus=(GPU,)),
)  # fmt: skip


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def begun(options, local_rank=0):
    return exporters(options, lambda: points(ROW, 120, 1), run="net", rank=2, local_rank=local_rank)


def test_prometheus_reads_the_latest_row_from_the_loopback():
    parser = pytest.importorskip("prometheus_client.parser")
    port = free_port()
    (one,) = begun(MetricsOptions(prometheus=str(port - 2)), local_rank=2)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    finally:
        one.close()
    found = {(s.name, *sorted(s.labels.items())): s.value for f in parser.text_string_to_metric_families(text)
             for s in f.samples}  # fmt: skip
    own = (("rank", "2"), ("run", "net"))
    assert found[("diagnose_steps_total", *own)] == 120
    assert found[("diagnose_windows_total", *own)] == 1
    assert found[("diagnose_step_seconds", *own, ("statistic", "p99"))] == 0.004
    assert found[("diagnose_phase_seconds", ("phase", "loading"), *own)] == 0.0002
    assert found[("diagnose_process_memory_bytes", *own)] == 12.5e6
    assert found[("diagnose_gpu_kernel_running_ratio", ("gpu", "3"), *own)] == 0.8
    assert found[("diagnose_gpu_sm_clock_hertz", ("gpu", "3"), *own)] == 1.41e9
    assert not any(name == "diagnose_tensor_memory_bytes" for name, *_ in found)  # not known, so not there


def test_a_taken_port_is_refused_with_a_remedy():
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OutputError, match=rf"cannot be served at 127\.0\.0\.1:{port} .*choose another port"):
            begun(MetricsOptions(prometheus=str(port)))


def test_a_collector_receives_the_last_values_at_the_end():
    pytest.importorskip("opentelemetry.sdk.metrics")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):  # the library's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            received.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (one,) = begun(MetricsOptions(otlp=f"http://127.0.0.1:{server.server_port}/v1/metrics"))
        one.close()
        server.shutdown()
        thread.join()
    (resource,) = received[-1].resource_metrics
    named = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert (named["service.name"], named["diagnose.run"], named["diagnose.rank"]) == ("diagnose", "net", "2")
    metrics = {m.name: m for m in resource.scope_metrics[0].metrics}
    assert metrics["diagnose.steps"].sum.data_points[0].as_int == 120
    steps = {
        p.attributes[0].value.string_value: p.as_double for p in metrics["diagnose.step_seconds"].gauge.data_points
    }
    assert steps == {"mean": 0.002, "p50": 0.001, "p90": 0.003, "p99": 0.004, "max": 0.005}


def test_a_watch_serves_its_own_steps_and_ends_the_server_with_itself(tmp_path):
    pytest.importorskip("prometheus_client")
    import diagnose

    port = free_port()
    with diagnose.watch("net", every=2, folder=tmp_path, prometheus=port, signal="", quiet=True) as watch:
        for _ in range(4):
            watch.step()
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
    assert 'diagnose_steps_total{rank="0",run="net"} 4.0' in text
    assert 'diagnose_step_seconds{rank="0",run="net",statistic="p50"}' in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)


def test_nothing_is_served_unless_asked():
    assert begun(MetricsOptions()) == []
    assert MetricsOptions(prometheus="9464").address == ("127.0.0.1", 9464)
    assert MetricsOptions(prometheus="0.0.0.0:9464").address == ("0.0.0.0", 9464)


@pytest.mark.parametrize("wrong", [{"prometheus": "x"}, {"prometheus": "99999"}, {"otlp": "localhost:4318"}])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(UsageError, match="Invalid"):
        MetricsOptions(**wrong)

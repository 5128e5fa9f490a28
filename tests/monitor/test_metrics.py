"""Metrics of a watch through the official client library, read back as Prometheus reads them."""

import socket
import urllib.request

import pytest

from diagnose.errors import OutputError, UsageError
from diagnose.monitor.metrics import Metrics, address_of, points
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


@pytest.fixture
def served(monkeypatch):
    """Return the function that serves the metrics of rank 2, the third on this machine, from a port on."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    return lambda port: Metrics(address_of(str(port)), lambda: points(ROW, 120, 1), run="net")


def test_prometheus_reads_the_latest_row_from_the_loopback(served):
    parser = pytest.importorskip("prometheus_client.parser")
    port = free_port()
    one = served(port - 2)
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


def test_a_taken_port_is_refused_with_a_remedy(served):
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OutputError, match=rf"cannot be served at 127\.0\.0\.1:{port} .*choose another port"):
            served(port - 2)


def test_a_watch_serves_its_own_steps_and_ends_the_server_with_itself(tmp_path):
    pytest.importorskip("prometheus_client")
    import diagnose

    port = free_port()
    with diagnose.watch("net", every=2, folder=tmp_path, prometheus=port, quiet=True) as watch:
        for _ in range(4):
            watch.step()
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
    assert 'diagnose_steps_total{rank="0",run="net"} 4.0' in text
    assert 'diagnose_step_seconds{rank="0",run="net",statistic="p50"}' in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)


@pytest.mark.parametrize(
    ("text", "address"), [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:9464", ("0.0.0.0", 9464)), ("[::1]:80", ("::1", 80))]
)
def test_a_port_alone_is_the_loopback_s(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("wrong", ["x", "99999", "host:"])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(UsageError, match="Invalid"):
        address_of(wrong)

"""No verdict where graphs were launched and the file holds nothing of what they ran."""

import pytest


def replaying(recording, *, recorded=False, kernels=0):
    """Return three steps of 1000 µs: a batch is copied, and a graph launched."""
    r = recording()
    for i in range(3):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        for k in range(4):
            r.copy(
                "Memcpy HtoD (Pinned -> Device)",
                at + 20 * k + 10,
                at + 20 * k + 20,
                launched=(at + 20 * k, at + 20 * k + 5),
            )
        r.op("aten::linear", at + 100, at + 150)
        nodes = [r.kernel("gemm", at + 200 + 200 * k, at + 390 + 200 * k) for k in range(3)] if recorded else []
        r.runtime("cudaGraphLaunch", at + 110, at + 140, launches=nodes)
        for k in range(kernels):
            r.kernel("relu", at + 300 + 10 * k, at + 305 + 10 * k, launched=(at + 151 + k, at + 151.5 + k))
    return r.diagnosis()


def test_graphs_without_tasks_withhold_the_verdict(recording):
    answer = replaying(recording)
    assert (answer.verdict, answer.dominant, answer.queue, answer.partition) == ("no-gpu", None, None, None)
    assert answer.headline == "Record again first: graphs ran whose work is not in the file"
    assert {p.saves_ns for p in answer.prescriptions} <= {(0.0, 0.0)}
    assert any("No graph that was launched left a device task" in note.text for note in answer.trust)


def test_shares_of_the_host_are_of_a_recording_without_a_device_only(recording):
    answer = replaying(recording)
    assert (answer.host_by_cause, answer.idle_by_cause) == ({}, {})
    host = recording()
    host.step(1, 0, 1000)
    host.op("aten::mm", 100, 700)
    assert sum(host.diagnosis().host_by_cause.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("change", [{"recorded": True}, {"kernels": 12}])
def test_where_the_devices_work_is_there_the_verdict_is_given(recording, change):
    assert replaying(recording, **change).verdict != "no-gpu"

"""host-sync: gaps that begin as a blocking call returns."""

import pytest

ITEM = "train.py(12): train_step"


def synced(r, *, call="cudaStreamSynchronize", start=210, end=310):
    """Wait for the device until ``end``, then dispatch operators until the late launch."""
    r.runtime(call, start, end)
    r.op("aten::mm", end, 690)
    return r


def test_the_gap_after_a_wait_is_the_waits(late):
    synced(late)
    assert late.booked() == {"host-sync": 400_000}
    finding = late.find("host-sync")
    assert (finding.lost_ns, finding.count, finding.total_ns, finding.median_ns) == (400_000, 1, 400_000, 400_000)
    assert finding.confidence == "high"
    assert finding.evidence == (
        "1 idle gap in 1 step: 400 µs of each step (40.0 %).",
        "1.0 blocking calls per step; the idle begins as these return: cudaStreamSynchronize (1×).",
    )
    example = finding.examples[0]
    assert (example.step, example.start_ns, example.lost_ns, example.before, example.after) == (
        1,
        300_000,
        400_000,
        "gemm",
        "relu",
    )


def test_the_operator_and_the_line_that_asked(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.frame(ITEM, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::item", 205, 312)
    r.op("aten::_local_scalar_dense", 206, 311)
    r.runtime("cudaStreamSynchronize", 210, 310)
    r.op("aten::mm", 312, 1000)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    finding = r.find("host-sync")
    assert finding.lost_ns == 400_000
    where = finding.where[0]
    assert (where.file, where.line, where.function, where.op) == ("train.py", 12, "train_step", "aten::item")
    assert finding.examples[0].host == "aten::item > aten::_local_scalar_dense > cudaStreamSynchronize"
    assert "aten::item in cudaStreamSynchronize (1×)" in finding.evidence[1]
    (p,) = r.prescribe("host-sync")
    assert p.title == "Stop waiting for the device in the loop (train.py:12)"
    assert p.before == "running_loss += loss.item()   # train.py:12"
    assert (p.id, p.remedy) == ("defer-sync", "diagnose.kernels.deferred_metrics")
    assert "DeferredMetrics" in p.after
    assert p.saves_ns == (80_000, 400_000)
    assert p.predicted_step_ns == 760_000


def test_where_clocks_are_coarse_the_call_may_end_as_the_gap_begins(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    r.op("aten::item", 205, 300)
    r.runtime("cudaStreamSynchronize", 210, 300)
    r.op("aten::mm", 300, 1000)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    finding = r.find("host-sync")
    assert "aten::item in cudaStreamSynchronize (1×)" in finding.evidence[1]
    assert finding.where[0].op == "aten::item"


def test_the_sampled_line_stands_first_with_its_code(late):
    script = "/project/train.py"
    late.lines[script, 3] = "total += loss.item()"
    late.samples_every(10, 210, 310, (script, 3, "train"), running=0)
    where = synced(late).find("host-sync").where[0]
    assert (where.file, where.line, where.function, where.code) == (script, 3, "train", "total += loss.item()")
    (p,) = late.prescribe("host-sync")
    assert p.before == "total += loss.item()   # train.py:3"


@pytest.mark.parametrize(("end", "fires"), [(299, False), (300, True), (350, True), (351, False)])
def test_the_call_returns_within_50_us_of_the_device_running_dry(late, end, fires):
    assert ("host-sync" in synced(late, end=end).booked()) == fires


@pytest.mark.parametrize(("start", "fires"), [(300, True), (301, False)])
def test_the_call_was_in_flight_as_the_device_ran_dry(late, start, fires):
    assert ("host-sync" in synced(late, start=start, end=340).booked()) == fires


@pytest.mark.parametrize(
    ("call", "fires"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("hipStreamSynchronize", True),
        ("cnrtQueueSync", True),
        ("cnrtSyncDevice", True),
        ("cnrtWaitNotifier", True),
        ("cnrtMemcpy", True),
        ("cnrtMemcpyAsync", False),
        ("cnrtQueueWaitNotifier", False),
        ("cudaMemcpy", True),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("cudaEventRecord", False),
    ],
)
def test_calls_that_block(late, call, fires):
    assert ("host-sync" in synced(late, call=call).booked()) == fires


@pytest.mark.parametrize(("returned", "fires"), [(297, False), (298, True), (310, True)])
def test_a_copy_call_blocks_where_it_returns_after_its_copy(recording, returned, fires):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 290, launched=(-20, -15))
    r.copy("Memcpy DtoH (Device -> Pageable)", 290, 300, launched=(100, returned))
    r.kernel("relu", 700, 1000, launched=(690, 695))
    r.op("aten::mm", 200, 1000)
    booked = r.booked()
    # a call that is over before the gap begins does not begin it
    assert ("host-sync" in booked) == (fires and returned >= 300)
    assert sum(booked.values()) == 400_000


@pytest.mark.parametrize(
    ("name", "call", "fires"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", True),
        ("Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync", False),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync", False),
        ("Memcpy DtoD (Device -> Device)", "cudaMemcpyAsync", False),
        ("Memcpy HtoD (Pinned -> Device)", "cudaMemcpy", True),
    ],
)
def test_a_call_that_queues_a_copy_waits_for_nothing_even_if_the_copy_is_over_before_it_returns(
    recording, name, call, fires
):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 290, launched=(-20, -15))
    r.copy(name, 290, 300, launched=(280, 305), call=call)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    r.op("aten::mm", 200, 1000)
    assert ("host-sync" in r.booked()) == fires


@pytest.mark.parametrize(("until", "rule"), [(499, "host-sync"), (500, "python-stall")])
def test_a_gap_that_python_fills_by_half_is_pythons(late, until, rule):
    late.runtime("cudaStreamSynchronize", 100, 300)
    late.op("aten::mm", until, 690)
    assert next(iter(late.booked())) == rule


def test_a_gap_that_the_loader_fills_is_the_loaders(late):
    late.runtime("cudaStreamSynchronize", 100, 300)
    late.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300, 690)
    assert late.booked() == {"data-stall": 390_000, "host-sync": 10_000}


def test_what_was_queued_before_the_gap_is_not_the_hosts(queued):
    r = queued()
    r.runtime("cudaStreamSynchronize", 100, 310)
    assert r.booked() == {"unexplained-device": 400_000}


def test_a_wait_on_a_thread_that_launches_nothing(late):
    late.runtime("cudaStreamSynchronize", 100, 310, thread="monitor")
    late.op("aten::mm", 300, 690)
    assert late.booked() == {"launch-bound": 400_000}


def test_calls_outside_the_window_do_not_count(late):
    late.runtime("cudaDeviceSynchronize", -500, -400)
    late.runtime("cudaDeviceSynchronize", 5000, 5001)
    assert synced(late).find("host-sync").evidence[1].startswith("1.0 blocking calls per step")


def test_a_wait_for_a_copy_to_the_device(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 200, launched=(-20, -15))
    r.op("aten::to", 204, 312)
    r.copy("Memcpy HtoD (Pageable -> Device)", 210, 300, launched=(206, 209))
    r.runtime("cudaStreamSynchronize", 210, 310)
    r.op("aten::mm", 312, 1000)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    assert r.find("host-sync").facts == {"to_device": 1.0, "feeds_exchange": 0.0, "waits_for": "copy"}
    assert [p.id for p in r.prescribe("host-sync")] == ["prefetch-to-device"]


def test_a_wait_for_the_sizes_of_an_exchange(late):
    synced(late)
    late.annotation("## sparse_data_dist ##", 205, 500)
    assert late.find("host-sync").facts["feeds_exchange"] == 0.0
    late.op("record_param_comms", 400, 420)
    assert late.find("host-sync").facts["feeds_exchange"] == 1.0
    assert [p.id for p in late.prescribe("host-sync")] == ["stay-on-device"]


def read_by(recording, *operators):
    """Return a step whose gap begins as a wait within the operators returns."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    for depth, name in enumerate(operators):
        r.op(name, 205 + depth, 312)
    r.runtime("cudaStreamSynchronize", 210, 310)
    r.op("aten::mm", 312, 700)
    r.kernel("relu", 700, 1000, launched=(690, 695))
    return r


@pytest.mark.parametrize(
    ("operators", "reason", "change"),
    [
        (["aten::item", "aten::_local_scalar_dense"], "value", "defer-sync"),
        (["aten::index", "aten::nonzero"], "shape", "stay-on-device"),
        (["torchvision::nms", "aten::to"], "shape", "stay-on-device"),
        (["aten::is_nonzero", "aten::item"], "branch", "stay-on-device"),
        ([], "synchronize", "remove-synchronize"),
    ],
)
def test_what_the_host_waits_for(recording, operators, reason, change):
    r = read_by(recording, *operators)
    assert r.find("host-sync").facts["waits_for"] == reason
    assert [p.id for p in r.prescribe("host-sync")] == [change]


def test_a_synchronize_behind_a_copy_to_the_host_reads_a_value(recording):
    r = read_by(recording)
    r.copy("Memcpy DtoH (Device -> Pinned)", 100, 110, stream=9, launched=(50, 55))
    assert r.find("host-sync").facts["waits_for"] == "value"


@pytest.mark.parametrize(("launched", "reason"), [(False, "exchange"), (True, "value")])
def test_what_is_read_right_before_an_all_to_all_are_its_sizes(recording, launched, reason):
    r = read_by(recording, "aten::to")
    if launched:
        r.kernel("add", 1100, 1110, launched=(320, 325))
    r.op("c10d::alltoall_base_", 400, 600)
    assert r.find("host-sync").facts["waits_for"] == reason


def test_a_silent_operator_of_the_host_is_not_the_restart_after_a_wait(recording):
    r = recording()
    r.step(1, 0, 10_000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.runtime("cudaStreamSynchronize", 100, 1010)
    r.op("aten::unique", 1020, 6000)
    r.op("aten::mm", 6010, 6030)
    r.kernel("gemm", 6040, 10_000, launched=(6015, 6020))
    booked = r.booked()
    assert booked["host-compute"] == 4_980_000
    assert "host-sync" not in booked

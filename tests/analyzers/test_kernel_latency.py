"""kernel-latency: pauses of under 10 µs before what is queued already."""

import pytest


def test_pauses_between_queued_kernels_add_up(recording):
    r = recording()
    r.step(1, 0, 1000)
    for i in range(100):
        r.kernel("add", 10 * i, 10 * i + 8, launched=(-200 + i, -199.5 + i))
    # 99 pauses of 2 µs between kernels; the last 2 µs of the step are the host's
    assert r.booked() == {"kernel-latency": 198_000, "python-stall": 2_000}
    finding = r.find("kernel-latency")
    assert (finding.lost_ns, finding.count, finding.median_ns) == (198_000, 99, 2_000)
    assert finding.evidence[0] == "99 idle gaps in 1 step: 198 µs of each step (19.8 %)."
    assert len(finding.examples) == 3


@pytest.mark.parametrize(
    ("pause", "rule"), [(9.999, "kernel-latency"), (10, "unexplained-device"), (10.001, "unexplained-device")]
)
def test_ten_us_are_too_long_for_latency(queued, pause, rule):
    assert queued(300, 300 + pause).booked() == {rule: round(pause * 1000)}


def test_fusing_is_prescribed(queued):
    (p,) = queued(300, 309).prescribe("kernel-latency")
    assert p.id == "fuse-kernels"
    assert "torch.compile" in p.after
    assert p.saves_ns == (pytest.approx(1_800), pytest.approx(6_300))


def test_on_another_stream_it_is_a_dependency(queued):
    assert queued(300, 305, stream_before=20).booked() == {"stream-dependency": 5_000}


@pytest.mark.parametrize("task_after", ["copy", "kernel"])
def test_before_a_copy_it_is_the_copys(recording, task_after):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(-20, -15))
    if task_after == "copy":
        r.copy("Memcpy HtoD (Pinned -> Device)", 305, 1000, launched=(-10, -5))
    else:
        r.kernel("relu", 305, 1000, launched=(-10, -5))
    assert r.booked() == {"exposed-copy" if task_after == "copy" else "kernel-latency": 5_000}


def test_within_a_graph_what_it_captures_is_compiled(recording):
    r = recording()
    r.step(1, 0, 1000)
    nodes = [r.kernel("add", 10 * i, 10 * i + (4 if i % 2 else 8)) for i in range(100)]
    r.runtime("cudaGraphLaunch", -10, -5, launches=nodes)
    finding = r.find("kernel-latency")
    assert finding.title == "Pauses between the nodes of CUDA graphs add up"
    assert finding.lost_ns == 99 * 2_000 + 49 * 4_000
    assert finding.evidence[-1] == (
        "100 nodes of graphs a step; 50 % of them take less than 5 µs, as long as a pause or two."
    )
    (p,) = r.prescribe("kernel-latency")
    assert p.title == "Compile what the CUDA graph captures, so that small nodes become one"
    assert "with torch.cuda.graph(graph):" in p.after

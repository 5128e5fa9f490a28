"""What the charts draw of one step."""

import pytest

from diagnose.pipeline import timeline as module
from diagnose.pipeline.timeline import picture


def spans(p, *categories):
    return [(s.lane, s.start_ns // 1000, s.end_ns // 1000, s.name) for s in p.spans if s.category in categories]


def test_the_step_nearest_to_the_median_is_drawn(recording):
    r = recording()
    at = 0
    for number, length in enumerate((1000, 1200, 5000)):
        r.step(number, at, at + length)
        at += length
    r.kernel("gemm", 0, 7200, launched=(-20, -15))
    p = picture(r.tables())
    assert (p.step, p.step_ns) == (1, 1_200_000)


def test_bars_by_lane_cut_at_the_step(late):
    late.copy("Memcpy HtoD (Pinned -> Device)", 750, 1200, stream=20, launched=(100, 105))
    late.kernel("ncclDevKernel_AllReduce", 800, 900, stream=30, launched=(110, 115))
    p = picture(late.tables())
    assert p.step_ns == 1_200_000, "up to the end of what the last step launched"
    assert spans(p, "compute") == [("GPU 0 stream 7", 0, 300, "gemm"), ("GPU 0 stream 7", 700, 1000, "relu")]
    assert spans(p, "copy") == [("GPU 0 stream 20", 750, 1200, "Memcpy HtoD (Pinned -> Device)")]
    assert spans(p, "communication") == [("GPU 0 stream 30", 800, 900, "ncclDevKernel_AllReduce")]
    assert spans(p, "operator") == [("host 100 +1", 0, 200, "aten::mm"), ("host 100 +1", 690, 1000, "aten::relu")]
    assert ("host 100", 0, 1000, "ProfilerStep#1") in spans(p, "annotation")
    assert p.num_spans_left_out == 0


def test_gaps_carry_their_cause_and_what_the_thread_did(late):
    p = picture(late.tables())
    assert [(g.start_ns, g.end_ns, g.cause, g.detail) for g in p.gaps] == [
        (300_000, 690_000, "python-stall", "between operators"),
        (690_000, 700_000, "launch-bound", "aten::relu"),
    ]


def test_depth_is_a_step_function_from_the_begin_of_the_step(late):
    assert picture(late.tables()).depth == ((0, 1), (300_000, 0), (690_000, 1))


def test_without_a_device_there_is_no_depth(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    p = picture(r.tables())
    assert p.depth == ()
    assert [(g.start_ns, g.cause) for g in p.gaps] == [(0, "operators"), (600_000, "python-stall")]


@pytest.mark.parametrize("limit", ["MAX_DEVICE_SPANS", "MAX_HOST_SPANS"])
def test_beyond_a_limit_the_longest_bars_are_kept_and_the_rest_counted(recording, monkeypatch, limit):
    monkeypatch.setattr(module, limit, 3)
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):
        if limit == "MAX_DEVICE_SPANS":
            r.kernel(f"k{i}", 100 * i, 100 * i + i + 1)
        else:
            r.op(f"k{i}", 100 * i, 100 * i + i + 1)
    p = picture(r.tables())
    drawn = [name for *_, name in spans(p, "compute", "operator")]
    assert drawn[-2:] == ["k8", "k9"]
    assert p.num_spans_left_out == (7 if limit == "MAX_DEVICE_SPANS" else 8), "the mark of the step is the longest"


def test_gaps_and_depths_have_limits_too(recording, monkeypatch):
    monkeypatch.setattr(module, "MAX_GAPS", 4)
    monkeypatch.setattr(module, "MAX_DEPTHS", 5)
    r = recording()
    r.step(1, 0, 1000)
    for i in range(10):
        r.kernel("k", 100 * i, 100 * i + 90 - i)  # pauses of 10, 11, … 19 µs
    p = picture(r.tables())
    assert [(g.end_ns - g.start_ns) // 1000 for g in p.gaps] == [16, 17, 18, 19]
    assert len(p.depth) == 5
    assert p.depth[0] == (0, 1)


def test_deep_nesting_is_left_out(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    for depth in range(6):
        r.op(f"op{depth}", depth, 1000 - depth)
    assert [name for *_, name in spans(picture(r.tables()), "operator")] == ["op0", "op1", "op2"]

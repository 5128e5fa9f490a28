"""The timeline as a page carries it: every span, gap and depth, in few bytes."""

import zlib
from base64 import b64decode

import numpy as np
import pytest

from diagnose.analyzers import LEGENDS
from diagnose.model.charts import Gap, Picture, Span, SpanTable
from diagnose.reports.timeline_data import levels, timeline_data

MS = 1_000_000


def unpacked(data: dict) -> list[list[int]]:
    """Return the columns of a timeline as the page's script reads them."""
    raw, at, columns = zlib.decompress(b64decode(data["packed"])), 0, []
    spans, gaps, depths = data["counts"]
    for n in [spans] * 5 + [gaps] * 5 + [depths] * 2:
        planes = [raw[at + i * n : at + (i + 1) * n] for i in range(4)]
        columns.append([sum(plane[i] << 8 * k for k, plane in enumerate(planes)) for i in range(n)])
        at += 4 * n
    assert at == len(raw)
    return columns


def test_the_timeline_holds_every_span_gap_and_depth(forms):
    picture = forms["gaps"].picture
    timeline = timeline_data(picture, LEGENDS)
    start, length, name, category, _launch, gap_start, gap_length, cause, *_, depth_at, depth = unpacked(timeline)
    assert timeline["counts"] == [47, 42, 82]
    assert [(lane["label"], lane["row"], lane["rows"]) for lane in timeline["lanes"]] == [
        ("GPU 0 stream 7", 0, 1), ("GPU 0 stream 20", 1, 1), ("thread 4711 (python) · training thread", 2, 3),
    ]  # fmt: skip
    assert timeline["rows"] == [33, 7, 4, 2, 1]
    assert (start[0], length[0], timeline["categories"][category[0]]["name"]) == (6 * MS, 232_000, "compute")
    assert timeline["names"][name[0]][0] == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert [c["name"] for c in timeline["causes"]][:2] == ["data-stall", "host-sync"]
    assert (gap_start[0], gap_length[0], cause[0]) == (0, 6 * MS, 0)
    assert (depth_at[1], depth[1]) == (6 * MS, 1)


def test_a_task_points_to_the_bar_of_its_launch():
    columns = {k: np.array(v, np.int64) for k, v in {
        "lane": [0, 0, 1, 1], "start": [50, 90, 10, 20], "end": [80, 99, 15, 25], "name": [0, 0, 1, 1],
        "category": [0, 0, 1, 1], "launch": [2, 3, -1, -1],
    }.items()}  # fmt: skip
    table = SpanTable(("GPU 0 stream 7", "host 1"), ("gemm", "cudaLaunchKernel"), ("compute", "runtime"), **columns)
    timeline = timeline_data(Picture(1, 100, table), LEGENDS)
    zigzag = unpacked(timeline)[4]
    before, launches = 0, []
    for z in zigzag:
        before += -((z + 1) // 2) if z & 1 else z // 2
        launches.append(before)
    assert launches == [2, 3, -1, -1]


def test_a_step_of_hours_keeps_its_proportions():
    hour = 3600 * 10**9
    timeline = timeline_data(Picture(1, 4 * hour, (Span("host 1", hour, 2 * hour, "x", "operator"),)), LEGENDS)
    start, length, *_ = unpacked(timeline)
    assert timeline["unit"] == 3353
    assert start[0] / timeline["length"] == pytest.approx(0.25)
    assert length[0] / timeline["length"] == pytest.approx(0.25)


@pytest.mark.parametrize("picture", [Picture(0, 0), Picture(0, 10)])
def test_nothing_to_draw_is_no_chart(picture):
    assert timeline_data(picture, LEGENDS) is None


def test_gaps_alone_are_drawn():
    timeline = timeline_data(Picture(0, 10 * MS, (), (Gap(0, MS, "host-sync", "waits", "train.py:42"),)), LEGENDS)
    assert (timeline["lanes"], timeline["counts"]) == ([], [0, 1, 0])
    assert timeline["names"] == [["waits"], ["train.py:42"]]


def test_nested_spans_get_rows_of_their_own():
    assert levels([(0, 10), (1, 5), (2, 3), (5, 9), (10, 12)]) == [0, 1, 2, 1, 0]
    assert max(levels([(i, 1000 - i) for i in range(50)])) == 7
    assert levels([]) == []

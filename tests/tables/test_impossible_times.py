"""Tasks that overlap on a stream: what no run does is a note, and much of it no answer."""

from __future__ import annotations

import pytest

from diagnose.tables.lost import overlap_share

OVERLAP = "Tasks of one stream overlap"
CANNOT = "The times of this file cannot be true"


def launched(recording, *spans, stream=7):
    r = recording()
    r.step(1, 0, 1000)
    for i, (start, end) in enumerate(spans):
        r.kernel("gemm", start, end, stream=stream, launched=(i, i + 0.5))
    return r


def notes(answer, text):
    return [note.text for note in answer.trust if text in note.text]


def test_the_share_of_the_tasks_time(recording):
    r = launched(recording, (100, 200), (150, 250), (160, 260), (300, 400))
    # 50 µs of the second and 90 of the third, of 400
    assert overlap_share(r.tables()) == pytest.approx(140 / 400)


@pytest.mark.parametrize(
    "spans", [((100, 200), (200, 300)), ((100, 200), (199, 300)), ((100, 200), (250, 250), (250, 260))]
)
def test_tasks_that_follow_each_other_up_to_rounding(recording, spans):
    assert overlap_share(launched(recording, *spans).tables()) == 0.0


def test_streams_are_apart(recording):
    r = launched(recording, (100, 200), (210, 300))
    r.kernel("gemm", 150, 290, stream=8, launched=(20, 21))
    assert overlap_share(r.tables()) == 0.0


def test_nodes_of_a_graph_run_side_by_side(recording):
    r = recording()
    r.step(1, 0, 1000)
    nodes = [r.kernel("gemm", 100 + 10 * k, 300 + 10 * k) for k in range(3)]
    r.runtime("cudaGraphLaunch", 10, 20, launches=nodes)
    assert overlap_share(r.tables()) == 0.0


def thirty_fold(recording, factor):
    spans = [(2 + 25 * i, 2 + 25 * i + 22.5 * factor) for i in range(40)]
    return launched(recording, *spans).diagnosis()


def test_few_overlaps_are_no_note(recording):
    answer = thirty_fold(recording, 1.12)
    assert (answer.record_again, notes(answer, OVERLAP)) == ("", [])


def test_some_are_a_note_and_the_answer_stands(recording):
    answer = thirty_fold(recording, 1.3)
    assert answer.record_again == ""
    assert len(notes(answer, OVERLAP)) == 1


def test_many_leave_no_answer(recording):
    answer = thirty_fold(recording, 30)
    assert answer.record_again == f"{CANNOT}: tasks of one stream overlap."
    assert answer.headline == "Record again first: the times of this file cannot be true"
    assert answer.waterfall is None
    assert {p.saves_ns for p in answer.prescriptions} <= {(0.0, 0.0)}
    assert len(notes(answer, OVERLAP)) == 1

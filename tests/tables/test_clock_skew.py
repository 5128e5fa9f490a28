"""How late the device's clock is, and what is read of it then. Times in µs."""

import pytest

from diagnose.replay import Edge, build, simulate
from diagnose.tables.syncs import late_by
from tests.replay.graph_times import ends, marks


def reading(recording, late, *, kind="sync", launched=10, num=2):
    """Return steps of 1000 whose host waits for a kernel of 400, which the device's clock has ``late`` µs too late.

    Launched at 0, the kernel runs from ``launched`` on; the call returns 5 behind its end, and Python takes 500 then.
    """
    r = recording()
    for i in range(num):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        begin = at + launched
        r.kernel("work", begin + late, begin + 400 + late, launched=(at, at + 4))
        if kind == "sync":
            r.runtime("cudaDeviceSynchronize", at + 6, begin + 405)
        elif kind == "copy":
            r.copy(
                "Memcpy DtoH (Device -> Pageable)",
                begin + 400 + late,
                begin + 402 + late,
                launched=(at + 6, begin + 407),
            )
        else:
            r.copy("Memcpy DtoH (Device -> Pinned)", begin + 400 + late, begin + 402 + late, launched=(at + 6, at + 9))
            r.runtime("cudaStreamSynchronize", at + 10, begin + 407)
    return r


@pytest.mark.parametrize("kind", ["sync", "copy", "stream"])
def test_calls_that_return_before_what_they_wait_for_show_it(recording, kind):
    assert late_by(reading(recording, 0, kind=kind).tables()) == 0
    assert late_by(reading(recording, 60, kind=kind).tables()) == 55_000


def test_no_more_than_tasks_begin_after_their_launches(recording):
    r = reading(recording, 60)
    for at in range(410, 1000, 100):  # clocks that are 55 µs apart would let these begin before their launches
        r.kernel("quick", at + 80, at + 82, launched=(at + 70, at + 74))
    assert late_by(r.tables()) == 0


@pytest.mark.parametrize("late", [0, 60, 90])
def test_the_wait_stays_an_edge(recording, late):
    t = reading(recording, late).tables()
    graph = build(t)
    wait = graph.kind == Edge.WAIT
    assert graph.delay[wait].tolist() == [(5 - late) * 1000] * 2
    assert graph.dropped == 0
    assert marks(graph) == [1000, 2000]
    assert simulate(graph).end.max() == graph.end.max()


@pytest.mark.parametrize("late", [0, 60])
def test_the_host_follows_a_longer_kernel(recording, late):
    from diagnose.replay import scale_kernels

    t = reading(recording, late).tables()
    longer = scale_kernels(build(t), t.trace, "^work$", 1.5)
    assert marks(longer) == [1200, 2400]
    assert ends(longer, "work", t)[1] == 1200 + 10 + 600 + late


def test_idle_time_behind_the_call_is_its_own(recording):
    def followed(late):
        r = reading(recording, late, num=4)
        for i in range(4):
            at = 1000 * i
            r.kernel("next", at + 560 + late, at + 600 + late, launched=(at + 550, at + 554))
            r.runtime("cudaStreamSynchronize", at + 605, at + 620)
        return r

    assert followed(0).booked()["host-sync"] == followed(60).booked()["host-sync"]
    for late in (0, 60):
        (found,) = (text for text in followed(late).find("host-sync").evidence if "blocking calls" in text)
        assert found.startswith(
            "2.0 blocking calls per step; the idle begins as these return: cudaDeviceSynchronize (4×)"
        )


def test_the_reader_is_told(recording):
    notes = [note.text for note in reading(recording, 60).diagnosis().trust]
    assert any(
        note.startswith("Calls return up to 55 µs before the device tasks that they wait for end") for note in notes
    )

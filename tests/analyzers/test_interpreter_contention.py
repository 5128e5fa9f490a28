"""interpreter-contention: a thread of the script's own that computes in Python. Times in µs."""

from dataclasses import replace

import pytest

from diagnose.analyzers import interpreter_contention
from diagnose.answer.screen import with_words
from diagnose.model.capture import OtherThread, SeenAt
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.rank import analyze_rank
from diagnose.reports.text import render


def watched(recording, **options):
    """Return what is found in a step of 1000 µs."""
    capture = captured(recording, **options)
    return interpreter_contention.find(build_tables(capture, capture.trace))


def captured(recording, *, cpu_share=0.4, file="train.py", in_python=20, free=500):
    """Return a step of 1000 µs, half of it outside of operators, and a thread that was seen 50 times."""
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000 - free)
    r.sample(100)
    thread = OtherThread(
        "prefetch",
        round(cpu_share * 1e9),
        60,
        (SeenAt(file, 23, "features", 40, in_python), SeenAt(file, 40, "run", 10, 0)),
    )
    capture = r.capture()
    return replace(
        capture, samples=replace(capture.samples, others=(thread,), watched_ns=1_000_000_000, own_cpu_ns=600_000_000)
    )


def test_a_thread_that_computes_in_python_is_named_with_its_line(recording):
    (finding,) = watched(recording)
    assert finding.lost_ns == pytest.approx(0.4 * 1_000_000)  # of 0.4 and 0.6 s of CPU time
    assert (finding.where[0].file, finding.where[0].line) == ("train.py", 23)
    assert finding.title == "The thread prefetch computes in Python and keeps the interpreter from the step"


def test_no_more_is_lost_than_the_training_thread_is_outside_of_operators(recording):
    (finding,) = watched(recording, free=100)
    assert finding.lost_ns == 100_000


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_share": 0.02},  # it waits
        {"in_python": 4},  # it computes in C, which gives the interpreter up
        {"file": "/usr/lib/python3.11/site-packages/tqdm/_monitor.py"},
        {"free": 20},
    ],
)
def test_threads_that_cost_the_step_nothing(recording, change):
    assert watched(recording, **change) == []


def test_its_heading_names_what_it_is_and_its_cost_is_of_the_step(recording):
    d = analyze_rank(captured(recording))
    (mine,) = (f for f in d.findings if f.rule == "interpreter-contention")
    assert (mine.lost_ns, mine.worth_ns) == (400_000, 400_000)
    d = with_words(replace(d, findings=(mine,), dominant=mine.rule))
    text = " ".join(render(d).split())
    assert text.startswith("Interpreter contention The thread prefetch computes in Python")
    assert "interpreter-contention 400 µs (40.0 % of the step)" in text
    assert "Run stalls" not in text
    assert "of the run" not in text

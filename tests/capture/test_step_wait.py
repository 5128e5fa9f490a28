"""Where a thread is while no step ends."""

import threading
import time
from pathlib import Path

import pytest

from diagnose.capture.frames.stretch import shortened
from diagnose.capture.record.sampler import Taken
from diagnose.capture.record.session import QUIET_S, StepWait, spent_at


def waiting(busy=False):
    said = []
    return StepWait(said.append, is_busy=lambda: busy), said


def look_after(wait, *seconds):
    for each in seconds:
        wait.look(wait._since + each)


def test_the_line_that_runs_is_shown_after_twenty_seconds_and_each_time_after_twice_as_many():
    wait, said = waiting()
    look_after(wait, 19, 21, 22, 39, 41, 79, 81)
    here = f"{Path(__file__).name}:"
    assert [text.partition(":")[0] for text in said] == [
        "no step for 21.0 s",
        "no step for 41.0 s",
        "no step for 81.0 s",
    ]
    assert all(f"{here}" in text and " in look_after, called at " in text for text in said)


def test_while_a_module_is_imported_the_import_is_shown(tmp_path, monkeypatch):
    """The modules are a library's, of which one imports the other; the line is this file's."""
    wait, said = waiting()
    library, waits, goes_on = tmp_path / "site-packages", tmp_path / "waits", tmp_path / "goes_on"
    library.mkdir()
    (library / "slow_outer.py").write_text("import slow_inner\n", encoding="utf-8")
    inner = (
        f"import pathlib, time\npathlib.Path({str(waits)!r}).touch()\n"
        f"while not pathlib.Path({str(goes_on)!r}).exists():\n    time.sleep(0.01)\n"
    )
    (library / "slow_inner.py").write_text(inner, encoding="utf-8")
    monkeypatch.syspath_prepend(str(library))

    def script():
        wait.stepped()
        import slow_outer  # noqa: F401

    thread = threading.Thread(target=script)
    thread.start()
    while thread.is_alive() and not waits.exists():
        time.sleep(0.01)
    look_after(wait, 21)
    goes_on.touch()
    thread.join()
    assert len(said) == 1
    assert said[0].startswith("no step for 21.0 s: importing slow_outer at ")
    assert f"{Path(__file__).name}:" in said[0]


def test_a_step_begins_the_wait_again():
    wait, said = waiting()
    look_after(wait, 21)
    wait.stepped()
    look_after(wait, 19, 21)
    assert [text[:18] for text in said] == ["no step for 21.0 s"] * 2


def test_nothing_is_shown_while_work_of_ours_goes_on():
    wait, said = waiting(busy=True)
    look_after(wait, QUIET_S + 1)
    assert said == []


S = 1_000_000_000
MAIN, PLAY = ("train.py", 14, "main"), ("play.py", 8, "play")


def taken(*paths):
    """Return samples of these paths, one a second from second 1 on."""
    found = Taken(threading.get_ident(), threading.get_native_id(), 20.0, depth=6)
    found.time_ns = [(1 + i) * S for i in range(len(paths))]
    found.place = [found.row_of(path) for path in paths]
    return found


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            [3, 3, 3, 3, 3, 3, 3, 9],
            "88 % of the last 7.00 s were spent at move.py:3 in move, called at train.py:14 in main.",
        ),
        (
            [1, 2, 3, 4, 5, 6, 7, 8],
            "100 % of the last 7.00 s were spent at play.py:8 in play, called at train.py:14 in main.",
        ),
        ([3, 3, 3, 3], ""),  # too few
    ],
)
def test_the_innermost_line_that_most_samples_share(lines, sentence):
    found = taken(*((("move.py", line, "move"), PLAY, MAIN) for line in lines))
    assert spent_at(found, 0) == sentence


def test_only_the_time_since_the_last_step_counts():
    found = taken(*[(("step.py", 2, "step"), MAIN)] * 20, *[(PLAY, MAIN)] * 10)
    assert (
        spent_at(found, 20 * S)
        == "91 % of the last 10.0 s were spent at play.py:8 in play, called at train.py:14 in main."
    )


def test_a_library_s_line_is_no_place():
    library = ("/venv/lib/python3.11/site-packages/x/loop.py", 9, "run")
    assert spent_at(taken(*[(library,)] * 9), 0) == ""
    assert spent_at(None, 0) == ""


def test_of_a_search_that_calls_itself_the_innermost_lines_and_who_calls_it_are_kept():
    path = [("s.py", line, "search") for line in (5, 5, 6, 5, 6, 7, 8, 9, 10, 11, 12, 13)]
    kept = shortened([*path, PLAY, MAIN], 6)
    assert kept == (*(("s.py", line, "search") for line in (5, 6, 7, 8, 9, 10)), path[-1], PLAY, MAIN)
    assert shortened([*path[:3], MAIN], 6) == (*path[1:3], MAIN)


def test_a_run_that_ends_without_a_step_is_said_to_have_been_at_a_line(capturing):
    failure = capturing("play.py", 2).result["failure"]
    assert failure.startswith("No step was captured: the script ran no optimizer step")
    assert "were spent at play.py:13 in search, called at " in failure

"""The watch in a real training loop; the clock that steps are timed by is the test's."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import count

import pytest

import diagnose
from diagnose.capture import step_marker
from diagnose.cli.main import run
from diagnose.errors import UsageError
from diagnose.monitor.long_run import Watch
from diagnose.monitor.run_folder import REQUEST_FILE, load_runs
from diagnose.monitor.watch_options import WatchOptions
from diagnose.monitor.windows import WindowLimits

torch = pytest.importorskip("torch")
MS = 1_000_000


class Clock:
    """Advances by what a step takes whenever one begins or ends."""

    def __init__(self):
        self.now, self.step_ms = 10_000 * MS, 10

    def __call__(self):
        self.now += self.step_ms * MS // 2
        return self.now


@pytest.fixture
def train_step():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return step


def watching(tmp_path, own_clock=lambda: 0, **more):
    said = []
    options = WatchOptions(folder=tmp_path, step_on="marker", every=2, **more)
    return Watch(options, report=said.append, clock=Clock(), own_clock=own_clock), said


def test_a_run_that_becomes_slower_records_a_window_and_diagnoses_it(tmp_path, train_step):
    watch, said = watching(tmp_path)
    with watch:
        for i in range(60):
            watch._clock.step_ms = 20 if i < 17 else 40
            train_step()
            watch.step()
    (run,) = load_runs(tmp_path, "run")
    assert [(row.step, row.p50_ns) for row in run.rows[:9]] == [
        *((2 * i + 1, 10 * MS) for i in range(1, 9)), (19, 20 * MS),
    ]  # fmt: skip
    (window,) = run.info.windows
    assert (window.step, window.folder) == (21, "step-21")
    assert window.why == "steps take 100.0 % more than before: 10.0 ms until step 17, then 20.0 ms"
    found = json.loads((run.folder / "step-21.json").read_text())
    assert found["verdict"] == "no-gpu"
    assert (run.folder / "step-21.html").exists()
    assert (run.info.ended, run.info.steps, run.info.torch) == ("finished", 60, torch.__version__)
    assert not step_marker.is_listened_to()
    assert any(text.startswith(f"step-21: {found['headline']} (") for text in said)


def test_a_settled_step_takes_few_calls(tmp_path, train_step):
    options = WatchOptions(folder=tmp_path, every=10, slow=1e9)
    loader = torch.utils.data.DataLoader(torch.ones(320, 8), batch_size=4)
    with Watch(options, own_clock=lambda: 0) as watch:
        batches = iter(loader)
        for _ in range(40):  # the step is found and fixed
            next(batches)
            train_step()
        calls = Counter()

        def count_calls(frame, event, _arg):
            if event == "call" and f"{os.sep}diagnose{os.sep}" in frame.f_code.co_filename:
                calls[frame.f_code.co_name] += 1

        sys.setprofile(count_calls)
        for _ in range(20):
            next(batches)
            train_step()
        sys.setprofile(None)
    assert watch.num_steps == 58  # the first event begins a step, the second shows that it recurs
    assert calls.total() / 20 < 40, calls  # 58 before hooks left out what a fixed step does not need


def test_a_watch_that_takes_more_than_its_share_times_fewer_steps_and_counts_all(tmp_path, train_step):
    """Each reading of its own clock is 0.1 ms later: a step takes 0.15 ms, a row 0.1 ms, together 2 % of 10 ms."""
    watch, said = watching(tmp_path, own_clock=count(step=MS // 10).__next__)
    watch._clock.step_ms = 20
    with watch:
        for _ in range(203):
            train_step()
            watch.step()
    assert said == [
        "Steps take 10.0 ms, and timing each of them 2.0 % of that: from step 11 on one in 4 is timed, to stay below "
        "0.5 %."
    ]
    (run,) = load_runs(tmp_path, "run")
    assert (run.info.steps, run.info.own_us, list(run.info.notes)) == (203, 50.0, said)
    assert [(row.step, row.skipped) for row in run.rows[:5]] == [(3, 0), (5, 0), (7, 0), (9, 0), (11, 0)]
    thinned = run.rows[5:]
    assert {(row.steps, row.p50_ns) for row in thinned} == {(2, 10 * MS)}
    assert [row.step - before.step for before, row in zip(run.rows[4:], thinned, strict=False)] == [
        row.covered for row in thinned
    ]
    assert 3 < sum(row.weight for row in thinned) / len(thinned) < 5


def test_what_is_asked_for_between_timed_steps_is_answered_at_the_next_one(tmp_path, train_step):
    watch, said = watching(tmp_path, own_clock=count(step=MS // 10).__next__, limits=WindowLimits(count=0))
    with watch:
        for i in range(60):
            train_step()
            watch.step()
            if i == 20:
                watch.record()
    assert watch._own_cost.interval == 8
    assert said[1:] == ["Not recorded: the limit of 0 windows is reached."]


def test_a_file_asks_for_a_window_and_the_limit_refuses_it(tmp_path, train_step):
    watch, said = watching(tmp_path, limits=WindowLimits(count=0))
    with watch:
        (watch.folder.path / REQUEST_FILE).touch()
        for _ in range(5):
            train_step()
            watch.step()
        assert not (watch.folder.path / REQUEST_FILE).exists()
    (run,) = load_runs(tmp_path, "run")
    assert [(w.why, w.note) for w in run.info.windows] == [
        ("asked for", "Not recorded: the limit of 0 windows is reached.")
    ]
    assert said[-1] == "Not recorded: the limit of 0 windows is reached."


def test_a_fault_of_the_watch_ends_the_watch_and_not_the_run(tmp_path, train_step, monkeypatch):
    monkeypatch.delenv("DIAGNOSE_DEBUG", raising=False)
    watch, said = watching(tmp_path)
    monkeypatch.setattr(watch._readings, "read", lambda: 1 / 0)
    with watch:
        for _ in range(6):
            train_step()
            watch.step()
    watch.folder.close()
    assert said == ["The watch ended at step 3: ZeroDivisionError: division by zero"]


def test_inside_a_trace_a_watch_marks_its_steps_and_writes_nothing(tmp_path):
    marks = count()
    step_marker.set_listener(lambda: next(marks))
    try:
        with diagnose.watch(folder=tmp_path) as watch:
            watch.step()
            watch.step()
    finally:
        step_marker.set_listener(None)
    assert next(marks) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [{"name": "../x"}, {"every": 1}, {"slow": 0}, {"max_mb": 0}, {"windows": -1}])
def test_what_makes_no_sense_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        diagnose.watch(folder=tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import pathlib, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(80):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if i == 40:
        (folder,) = pathlib.Path("diagnose-runs/train").iterdir()
        (folder / "record").touch()
        time.sleep(2.1)  # so often it is looked for
print("watched", sys.argv)
sys.exit(3)
"""


@pytest.mark.slow
def test_the_command_runs_a_script_to_its_end_and_records_a_window_that_a_file_asks_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "diagnose", "watch", "--every", "10", "train.py", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (3, "watched ['train.py', '--epochs', '2']\n")
    assert run(["watch", "--list", "train", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["steps"], found["ended"]) == (78, "finished")
    (window,) = found["windows"]
    assert (window["step"], window["why"], window["note"]) == (40, "asked for", "")
    assert run(["watch", "--list"]) == 0
    assert capsys.readouterr().out == "train\n"
    assert run(["watch", "--list", "other"]) == 2

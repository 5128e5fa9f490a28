"""What can be read of processes from outside: the files of /proc stand in a folder, so that no process is timed."""

import multiprocessing
import os
import queue
import sys
from types import SimpleNamespace

import pytest

from diagnose.capture.process.process import busy_share
from diagnose.capture.record import script_config
from diagnose.capture.record.script_config import ScriptConfig

TICK = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path):
    """Return a function that writes a process of /proc: CPU seconds, and the uptime at which it began; now is 100."""
    (tmp_path / "uptime").write_text("100.00 180.00\n")

    def write(pid, *, user_s, system_s, began_s):
        fields = ["S", *"0" * 10, str(int(user_s * TICK)), str(int(system_s * TICK)), *"0" * 6, str(began_s * TICK)]
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (odd) name) {' '.join(fields)} 0 0\n")

    return write


def test_the_share_is_of_the_lives_of_all_processes_together(proc, tmp_path):
    proc(7, user_s=25, system_s=5, began_s=60)  # 30 of 40 s
    proc(8, user_s=1, system_s=1, began_s=90)  # 2 of 10 s
    assert busy_share([7], tmp_path) == 0.75
    assert busy_share([8], tmp_path) == 0.2
    assert busy_share([7, 8], tmp_path) == 32 / 50


def test_of_a_process_that_is_gone_nothing_is_known(proc, tmp_path):
    proc(7, user_s=1, system_s=0, began_s=60)
    assert busy_share([7, 9], tmp_path) is None
    assert busy_share([], tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_files_of_this_system_are_read():
    assert busy_share([os.getpid()]) >= 0


def test_the_loader_s_workers_are_taken_down_while_they_live(monkeypatch):
    class Iterator:
        _workers = (SimpleNamespace(pid=7), SimpleNamespace(pid=8))

    shares = {(7, 8): 0.6404}
    monkeypatch.setattr(script_config, "busy_share", lambda pids: shares[tuple(pids)])
    config, dataset, iterator = ScriptConfig(), object(), Iterator()
    config.loader_opened(SimpleNamespace(num_workers=2), dataset)
    config.batch_delivered(dataset, iterator)
    config.settle()
    assert config.loader["num_workers"] == 2
    assert config.loader["workers_busy"] == 0.64


def of_workers(dataset, queue, *, made=False):
    """Return a loader's iterator that waits for batch 3, which may have come before an earlier one."""
    task = (0, "data") if made else (0,)
    return SimpleNamespace(_dataset=dataset, _data_queue=queue, _task_info={3: task}, _rcvd_idx=3)


def test_batches_of_workers_that_are_there_when_they_are_asked_for_are_counted():
    config, dataset, reader_and_writer = ScriptConfig(), object(), multiprocessing.Pipe(duplex=False)
    pipe, pinned = SimpleNamespace(_reader=reader_and_writer[0]), queue.Queue()
    config.loader_opened(SimpleNamespace(num_workers=2), dataset)
    config.batch_asked(of_workers(dataset, pipe))
    reader_and_writer[1].send(1)
    config.batch_asked(of_workers(dataset, pipe))
    config.batch_asked(of_workers(dataset, pinned))
    config.batch_asked(of_workers(dataset, pinned, made=True))
    config.batch_asked(SimpleNamespace(_dataset=dataset))  # the main process makes it
    reader_and_writer[0].close()
    config.batch_asked(of_workers(dataset, pipe))  # nobody knows
    assert config.loader["batches_ready"] == 0.5


def test_a_loader_without_workers_has_no_such_share():
    config, dataset = ScriptConfig(), object()
    config.loader_opened(SimpleNamespace(num_workers=0), dataset)
    assert config.loader["batches_ready"] is None


class Epoch:
    """A loader's iterator."""


@pytest.mark.parametrize(("updates", "workers"), [(3, 4), (0, 0)])
def test_the_loader_that_trains_is_described_not_one_that_evaluates_on_more_batches(updates, workers):
    config, train, test, optimizer, epoch = ScriptConfig(), object(), object(), Epoch(), Epoch()
    for dataset, num in ((train, 4), (test, 0)):
        config.loader_opened(SimpleNamespace(num_workers=num), dataset)
    for _ in range(updates):
        config.batch_delivered(train, epoch)
        config.optimizer_stepped(optimizer)
    for _ in range(1000):
        config.batch_delivered(test, epoch)
    config.optimizer_stepped(optimizer)
    assert config.loader["num_workers"] == workers
    assert config.loader["num_loaders"] == 2

"""What can be read of processes from outside: the files of /proc stand in a folder, so that no process is timed."""

import multiprocessing
import os
import queue
from types import SimpleNamespace

import pytest

from diagnose.capture.record.script_config import ScriptConfig

TICK = os.sysconf("SC_CLK_TCK")


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

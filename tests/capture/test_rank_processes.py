"""Which of the processes that a script starts may turn out to be ranks."""

import multiprocessing
import multiprocessing.pool

import pytest
from torch.utils.data._utils.worker import _worker_loop

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.rank_processes import RankProcess, trace_processes


def train(rank):
    return rank


@pytest.mark.parametrize(
    ("target", "args", "traced"),
    [
        (train, (0,), True),
        (_worker_loop, (), False),
        (multiprocessing.pool.worker, (), False),
        (None, (), False),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_only_the_script_s_own_functions_are_traced(tmp_path, monkeypatch, target, args, traced, first):
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", lambda _process: None)
    process = multiprocessing.Process(target=target, args=args)
    end = trace_processes(CaptureOptions(tmp_path), (), is_first=lambda: first, all_captured=lambda: None)
    try:
        process.start()
    finally:
        end()
    assert isinstance(process._target, RankProcess) is (traced and first)

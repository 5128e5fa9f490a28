"""no-debug-checks: its patch keeps anomaly detection off, and puts back what was there."""

import os

import torch

from diagnose.changes.common.change import Log
from diagnose.changes.patches.memory import no_debug_checks


def test_launches_do_not_block_while_the_patch_is_in_place(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    log = Log()
    undo = no_debug_checks(log, {})
    inside = os.environ.get("CUDA_LAUNCH_BLOCKING")
    undo()
    assert (inside, os.environ["CUDA_LAUNCH_BLOCKING"]) == (None, "1")
    assert log.done == ["CUDA_LAUNCH_BLOCKING is not set"]


def test_the_script_cannot_turn_it_on_while_the_patch_is_in_place():
    log = Log()
    undo = no_debug_checks(log, {})
    try:
        torch.autograd.set_detect_anomaly(True)
        assert not torch.is_anomaly_enabled()
        with torch.autograd.set_detect_anomaly(True):
            assert not torch.is_anomaly_enabled()
    finally:
        undo()
    assert log.done == ["torch.autograd.set_detect_anomaly(False)"]
    with torch.autograd.set_detect_anomaly(True):
        assert torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled()

"""no-debug-checks: its patch keeps anomaly detection off, and puts back what was there."""

import torch

from diagnose.changes.common.patching import Log
from diagnose.changes.patches.debugging import no_debug_checks


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

"""How long anomaly detection takes to record a stack."""

import torch
from torch import nn

from diagnose.capture.record.recording import AnomalyStacks


def test_what_a_stack_of_anomaly_detection_takes_is_measured():
    watch = AnomalyStacks()
    for is_on in (False, True):
        watch.start()
        with torch.autograd.set_detect_anomaly(is_on):
            nn.Linear(4, 4)(torch.ones(2, 4))
        watch.stop()
        assert (watch.stack_ns > 0) is is_on
    assert "_watched" not in nn.Module._call_impl.__qualname__

"""Patches that turn off what is meant for finding bugs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute

__all__ = ["LAUNCH_BLOCKING", "no_debug_checks"]

LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"  # read when the device is first used


def no_debug_checks(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Keep anomaly detection off, whatever the script asks for, and let launches return at once."""
    import torch

    real, was_on, was_checking = (
        torch.set_anomaly_enabled,
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )

    def stay_off(mode: bool, check_nan: bool = True) -> None:  # torch's own signature
        real(False, check_nan)
        if mode:
            log.did("torch.autograd.set_detect_anomaly(False)")

    blocking = os.environ.pop(LAUNCH_BLOCKING, None)
    if blocking not in (None, "", "0"):
        log.did(f"{LAUNCH_BLOCKING} is not set")
    if was_on:
        stay_off(True)
    put_back = replace_attribute(torch, "set_anomaly_enabled", stay_off)

    def undo() -> None:
        if blocking is not None:
            os.environ[LAUNCH_BLOCKING] = blocking
        put_back()
        real(was_on, was_checking)

    return undo

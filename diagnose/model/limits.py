"""Limits that several stages apply alike; one that a single file applies stands in that file."""

from __future__ import annotations

from typing import Final

__all__ = ["MAJORITY", "MAX_LOSSES", "MAX_READY_SHARE", "MAX_TIMES", "MIN_GAIN_SHARE", "MIN_REGIONS", "USABLE_SHARE"]

MIN_GAIN_SHARE: Final = 0.01  # of the step: less is no action, and no step of the waterfall
MAX_READY_SHARE: Final = 0.05  # of the time, that the training thread waited for a core: beyond it no core was free
USABLE_SHARE: Final = (
    0.9  # of the device's memory, for the allocator: the driver, the context and fragments take the rest
)
MIN_REGIONS: Final = 4  # without gradients: a teacher, a moving average or a target network take one or two a step
MAX_TIMES: Final = 64  # the recorded batch: beyond it other things than memory bound a batch
MAX_LOSSES: Final = 100  # of each side of a trial, in the JSON and in the charts
MAJORITY: Final = 0.5  # of several: the share from which on they stand for all, where nothing calls for another one

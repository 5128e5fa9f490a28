"""Limits that several stages apply alike, and what can be chosen among in the command, in settings and from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

StepOn: TypeAlias = Literal["auto", "optimizer", "dataloader", "forward", "marker"]
STEP_SOURCES: Final[tuple[StepOn, ...]] = ("auto", "optimizer", "dataloader", "forward", "marker")

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")

REDUCED: Final = ("all_reduce", "reduce_scatter")  # collectives whose results the optimizer needs, and nothing before
OVERLAPPED: Final = (*REDUCED, "all_gather")  # collectives that a what-if may overlap with computation

Doubt: TypeAlias = Literal["", "noise not known", "measured once", "not repeated", "disturbed"]
"""Why the result of a trial may be chance: too few runs to know how far equal ones differ, or they did."""

TrialMethod: TypeAlias = Literal["patch", "edited copy", "by hand"]
"""How a trial makes a change: from outside, in the text of the script that it runs, or not at all."""

HOW_TRIED: Mapping[TrialMethod, str] = {
    "patch": "prove applies it to the unmodified script",
    "edited copy": "prove makes it in the text of a copy of the script",
    "by hand": "Made by hand",
}

EXPORTS: Final = ("perfetto", "speedscope", "collapsed", "findings", "kernels", "markdown", "figures", "tensorboard")


MIN_GAIN_SHARE: Final = 0.01  # of the step: less is no action, and no step of the waterfall
MAX_READY_SHARE: Final = 0.05  # of the time, that the training thread waited for a core: beyond it no core was free
USABLE_SHARE: Final = (
    0.9  # of the device's memory, for the allocator: the driver, the context and fragments take the rest
)
MIN_REGIONS: Final = 4  # without gradients: a teacher, a moving average or a target network take one or two a step
MAX_TIMES: Final = 64  # the recorded batch: beyond it other things than memory bound a batch
MAJORITY: Final = 0.5  # of several: the share from which on they stand for all, where nothing calls for another one
MAX_LOSSES: Final = 100  # of each side of a trial, in the JSON and in the charts

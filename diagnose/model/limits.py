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

Doubt: TypeAlias = Literal["", "noise not known", "measured once", "not repeated", "disturbed", "interrupted"]
"""Why the result of a trial may be chance: too few runs to know how far equal ones differ, or they did; or Ctrl-C."""

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
MAX_NAMED: Final = 3  # of a list in a sentence
FEWEST: Final = 4  # steps, turns or calls: their median shrugs off one of them, and fewer do not show what is usual
MIN_RECURRENCES: Final = 3  # from so many times on something comes back: twice may be chance
NEARLY_ALL: Final = 0.9  # of several, where hardly anything disturbs them
PREVAILS: Final = 0.7  # of several: most of them, where some are disturbed or were read wrongly
FEW: Final = 0.05  # of several: so many may be disturbed, or another thing's
LONG_NS: Final = 1_000_000  # of the host: dispatching an operator and calling the driver take far less
AT_ONCE_NS: Final = 50_000  # from an event to what it lets go on, on host and device
CALL_NS: Final = 10_000  # what calling an operator or launching a kernel takes at most, 3 to 8 µs on most hosts
MAX_LOSSES: Final = 100  # of each side of a trial, in the JSON and in the charts

"""What can be chosen among in the command, in settings and from Python alike."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

__all__ = ["ENGLISH", "EXPORTS", "LANGUAGES", "OVERLAPPED", "REDUCED", "STEP_SOURCES", "StepOn"]

StepOn: TypeAlias = Literal["auto", "optimizer", "dataloader", "forward", "marker"]
STEP_SOURCES: Final[tuple[StepOn, ...]] = ("auto", "optimizer", "dataloader", "forward", "marker")

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")

REDUCED: Final = ("all_reduce", "reduce_scatter")  # collectives whose results the optimizer needs, and nothing before
OVERLAPPED: Final = (*REDUCED, "all_gather")  # collectives that a what-if may overlap with computation

EXPORTS: Final = ("perfetto", "speedscope", "collapsed", "findings", "kernels", "markdown", "tensorboard")

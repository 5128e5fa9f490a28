"""The thresholds of the queue procedure, and how the data lies around each.

The data are the 77 graded timelines of docs/accuracy.md, V100 to B200 and MI210 to MI300X; `scripts/accuracy` also
fits the first four anew without each group of them. Thresholds of single rules stand with the rules.
"""

from __future__ import annotations

from diagnose.model.frozen import dataclass

__all__ = ["THRESHOLDS", "Thresholds"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the verdict and the choice of the dominant finding depend on."""

    # Idle share of the step up to which the device is full. Timelines read as full have up to 0.13, those read as
    # having gaps 0.19 and more.
    significant_idle: float = 0.17
    # Launches: median depth while the device works up to which the queue is shallow. Timelines limited by launching
    # have 1 to 2 (cold ones more, for which cold_share counts), holes in a full queue 16 and more.
    shallow_depth: float = 8.0
    # Where launches are not linked to tasks there is no depth: most of the step is idle, and most tasks end a pause.
    sparse_idle: float = 0.5
    sparse_late: float = 0.5
    # Of the idle time: one-off work from which on the host is the limit, where most of the step is idle.
    cold_share: float = 0.5
    # Of the step: what a finding must cost to be listed, to answer, and to answer in place of unexplained time.
    naming_share: float = 0.01
    dominant_share: float = 0.02
    known_share: float = 0.1
    # Of what a step without the largest cause saves: what one without another cause must save to answer in its place,
    # and what it must save where recording makes that cause longer. Replays miss by a few percent. Where recording made
    # a cause longer than it is, it lay at 1.4 at most; where it was the answer, at 1.6 and more.
    distinct_factor: float = 1.1
    clear_factor: float = 1.5
    # Of the largest cause: another one of at least this size answers where recording makes the largest longer, if it
    # recurs in this share of the steps. Pairs of that kind lie at 0.85 to 0.92 where the smaller one was the cause, and
    # at up to 0.54 where it was not.
    near_share: float = 0.75
    recurs_in: float = 0.5


THRESHOLDS = Thresholds()

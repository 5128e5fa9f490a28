"""The thresholds of the queue procedure, and how the data lies around each.

The data are the 77 graded timelines of evaluation/pages/accuracy.md, V100 to B200 and MI210 to MI300X;
`evaluation/accuracy` also fits significant_idle, shallow_depth and cold_share anew without each group of them.
Thresholds of single rules stand with the rules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the verdict and the list of findings depend on."""

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
    # Of the step: what a finding must cost to be listed.
    naming_share: float = 0.01


THRESHOLDS = Thresholds()

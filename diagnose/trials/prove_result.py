"""What the trials of one ``diagnose prove`` showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from diagnose.model.diagnosis import Trial
from diagnose.trials.candidates import Candidate, together
from diagnose.trials.trials import is_gain, skipped

__all__ = ["ALONE_IS_BEST", "CUT_OFF", "INTERRUPTED", "NOTHING_TRIED", "ProveResult", "gains"]

NOTHING_TRIED = "The budget ended before any change could be tried; give --budget more."
INTERRUPTED = "It was interrupted before it was measured."
CUT_OFF = "The budget ended while it ran; give --budget more."
ALONE_IS_BEST = "Together the changes are not a certain gain; the largest alone is."


@dataclass
class ProveResult:
    """What the runs showed."""

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: tuple[str, ...] = ()  # ids whose gain is certain, applied together in the last trial
    nothing_tried: bool = False  # the budget ended before
    interrupted: bool = False  # by Ctrl-C: what was known until then is there

    def interrupt(self, chosen: Sequence[Candidate]) -> None:
        """Keep what is known of the changes after Ctrl-C."""
        self.interrupted = True
        known = {name for trial in self.trials for name in (trial.id, *trial.ids)}
        left = [replace(each, skip_reason=INTERRUPTED) for each in chosen if each.id not in known]
        self.trials += map(skipped, left)
        self.best = gains(self.trials)[:1]  # several have not been measured together to the end


def gains(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the changes that helped, the largest gain first; of those that change the same thing the best."""
    found = sorted((t for t in trials if t.kind == "single" and is_gain(t)), key=lambda t: -t.speed_up)
    return together([t.id for t in found])

"""A loop calls small operators that each need the previous result.

What it looks for
    Lines that call the same operators at least four times per step, at least three quarters of them in one chain.
    Examples: a recurrent cell, a scan over time, a solver. Threshold: the calls take 5% of the step.

Why it costs
    Each call costs some microseconds, and the calls cannot overlap.

What to do
    Use one operator for the whole loop: `nn.LSTM`, `nn.GRU`, `cumsum`, `cumprod` or a convolution. Otherwise move work
    that does not need the state out of the loop, and compile its body.

How sure
    High that the calls depend on each other. Needs `diagnose trace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import loop_rule
from diagnose.model.rules import Legend, RuleMeta

if TYPE_CHECKING:
    from diagnose.dataflow.loops import Loop

META = RuleMeta(
    id="recurrence",
    kind="idle",
    order=143,
    host_order=98,
    legend=Legend("a loop called small operators that need each other", "#2f7d6d"),
    changes=("vectorise-loop",),
    needs=("data flow",),
)


def dependence(loop: Loop) -> str:
    """Return how far the calls of a loop depend on each other, as the end of a sentence."""
    return f"; {loop.longest_chain} of them need each other one after the other."


_TITLE = "A loop calls operators one by one, each of which needs the one before"
_RULE = loop_rule(META, "recurrent", _TITLE, dependence)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find

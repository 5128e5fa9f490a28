"""A loop computes turn by turn what a few operators can compute for all turns.

What it looks for
    Lines that call the same operators at least four times per step, each after the one before. What the turns hand on
    is the state of an LSTM, GRU or RNN, a sum of scaled terms, a product or a maximum. Of other loops, lines that do
    not need the turn before. Threshold: the calls take 5% of the step.

Why it costs
    Each call costs some microseconds, and the calls cannot overlap.

What to do
    Use one operator for the whole loop: `nn.LSTM`, `nn.GRU`, `cumsum`, `cumprod` or a convolution. Otherwise move lines
    that do not need the state out of the loop.

How sure
    High: the recorded data flow shows what each turn needs of the one before. A loop whose turns hand on anything else
    is how the model is, and is not reported. Needs `diagnose trace`.
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
    legend=Legend("a loop called small operators that need each other"),
    changes=("vectorise-loop",),
    needs=("data flow",),
)


def dependence(loop: Loop) -> str:
    """Return what a loop's turns hand on, as the end of a sentence."""
    if loop.kind == "separable":
        return ". Its turns need each other, but not what this line computes in another turn."
    scan = "a sum of scaled terms, a product or an extreme"
    handed_on = scan if loop.form == "scan" else f"the state of an nn.{loop.form}"
    return f"; {loop.longest_chain} of them need each other one after the other. The turns hand on {handed_on}."


_TITLES = {
    "recurrent": "A loop calls operators one by one, and each needs the one before",
    "separable": "A loop computes in each turn what does not need the turn before",
}
_RULE = loop_rule(META, _TITLES, dependence)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find

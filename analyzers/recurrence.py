"""A loop calls small operators, each of which needs the result of the call before.

What it looks for
    Lines that call the same operators at least four times in a step, where the longest chain of calls that need each
    other has at least three quarters of them: a recurrent cell, a scan over time, a solver. What calling operators
    takes: at least 5 % of the step. Loops with a backward pass in each turn, layers that follow each other, and what
    one operator of torch calls, as `nn.LSTM` does on a CPU, are left out.

Why it costs
    Each operator costs some microseconds to call, and on a GPU to launch, however little it computes. The calls follow
    each other, so that nothing runs beside them.

What to do
    Use one operator for the whole loop: `nn.LSTM` or `nn.GRU` for a cell, `cumsum`, `cumprod` or a convolution for a
    linear scan. Otherwise move what does not depend on the state out of the loop, and compile its body.

How sure
    High that the calls need each other: the data flow shows what each reads. Whether one operator computes the same
    only the script's author knows. What it saves is estimated as for `independent-loop`.
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

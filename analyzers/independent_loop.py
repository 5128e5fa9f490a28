"""A loop calls small operators whose results do not depend on each other.

What it looks for
    Lines that call the same operators at least four times in a step, where no call needs the result of the one before:
    experts, rows, boxes or parameters in a Python loop. What calling operators takes: at least 5 % of the step. Loops
    with a backward pass in each turn, layers that follow each other, and what one operator of torch calls, are left
    out.

Why it costs
    Each operator costs some microseconds to call, and on a GPU to launch, however little it computes.

What to do
    Stack the inputs and call each operator once: a batch dimension, `torch.bmm`, `torch.vmap` or `torch._foreach_*`.

How sure
    High that the calls are independent: the data flow shows what each reads; a sum of their results is no dependence.
    What a batched form saves is estimated as the Python between the operators and all calls but one, if they cost no
    more than the cheapest operators do. Without a device, what `launch-bound` would count of the loop is its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import loop_rule
from diagnose.model.rules import Legend, RuleMeta

if TYPE_CHECKING:
    from diagnose.dataflow.loops import Loop

META = RuleMeta(
    id="independent-loop",
    kind="idle",
    order=139,
    host_order=97,
    legend=Legend("a loop called small operators one by one", "#3f7fa8"),
    changes=("vectorise-loop",),
    needs=("data flow",),
)


def dependence(loop: Loop) -> str:
    """Return how far the calls of a loop depend on each other, as the end of a sentence."""
    alike = "of one shape" if loop.same_shapes else "of different shapes"
    weights = "" if loop.same_weights else ", each with weights of its own"
    return f" {alike}{weights}; the longest chain of calls that need each other is {loop.longest_chain}."


_TITLE = "A loop calls operators one by one that do not depend on each other"
_RULE = loop_rule(META, "independent", _TITLE, dependence)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find

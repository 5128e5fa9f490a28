"""Each token is generated from the whole sequence again.

What it looks for
    Four or more calls of a model whose input grows by the same length each time: 64, 65, 66 positions. Threshold: 5% of
    the step or of GPU busy time.

Why it costs
    Each token costs a forward over all positions. Keys and values of earlier positions do not change.

What to do
    Cache keys and values (`use_cache=True`), and pass only the new position to the model.

How sure
    High, unless positions attend to later ones. Needs recorded shapes.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.growing_calls import tasks_of
from diagnose.text.numbers import duration

META = RuleMeta(
    id="uncached-generation",
    kind="idle",
    order=129,
    host_order=78,
    legend=Legend("positions were computed again for each token"),
    changes=("keep-keys",),
    needs=("shapes",),
)
ADVICE = (
    Advice(
        id="keep-keys",
        title="Keep keys and values between tokens{there}",
        numerics=rounding("products of one position are summed in another order than those of all"),
        after="""# a model of transformers: switch it on, in the configuration or for one call
# model.generate(inputs, use_cache=True, max_new_tokens=10)
# your own model: keys and values are made once, and each call gets only the new position
keys = torch.empty(batch_size, heads, max_length, width)      # and values, for each layer
keys[:, :, length : length + 1] = new_keys
read = keys[:, :, : length + 1]""",
        needs="a model that only looks back, and memory for the cache",
        watch="For a captured graph or a compiled step the cache needs its whole length from the start.",
        least=0.5,  # short products take a larger part of their time to be called
    ),
)


TITLE = "Each token is generated from all positions again, without a cache of keys and values"


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim no idle time: a cache makes kernels shorter, and not fewer."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the part of operators that is computed again."""
    found = t.growing_calls
    return EMPTY if found is None else worth_claiming(t, left, union(found.host))


def find(t: Tables) -> list[Finding]:
    """Name the calls and what they compute again."""
    found = t.growing_calls
    if found is None:
        return []
    text = (
        f"{found.num:.3g} calls per step have inputs of {found.first:,} to {found.last:,} positions, {found.by:,} more "
        "each time."
    )
    if t.device_id < 0:
        again = duration(total(union(found.host)) / t.steps.num)
        texts = [text, f"Operators compute {again} a step of positions that the call before had."]
        return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=texts))
    tasks, spare = tasks_of(t, found)
    kept = float(((t.tasks.end - t.tasks.start)[tasks] * (1 - spare)).sum())
    return kernel_finding(t, KernelRule(META.id, TITLE, kept_ns=kept, evidence=[text]), tasks)

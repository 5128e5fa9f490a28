"""Keep keys and values of earlier positions, and compute the new one alone.

What it does
    Each call gets the positions that are new, and attention reads what earlier calls have kept of the others.

What to watch
    The cache takes memory: two tensors of batch, heads, positions and width for each layer. Where it is to be used by a
    captured graph or a compiled step it needs its whole length from the start, and pieces are written into it: a cache
    that `torch.cat` grows is copied for each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.5  # of what is computed again: short products take a larger part of their time to be called
_AFTER = """# a model of transformers: switch it on, in the configuration or for one call
# model.generate(inputs, use_cache=True, max_new_tokens=10)
# a model of one's own: keys and values are made once, and each call gets the new position alone
keys = torch.empty(batch_size, heads, max_length, width)      # and values, for each layer
keys[:, :, length : length + 1] = new_keys
read = keys[:, :, : length + 1]"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    at = f" ({at_line(place)})" if place else ""
    return Advice(
        title=f"Keep keys and values between tokens{at}",
        before=(place.code or "") if place else "",
        after=_AFTER,
        least=MIN_SAVED_SHARE,
        needs="a model that looks back alone, and memory for the cache",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of kernels that compute the new positions alone."""
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.growing_calls import tasks_of

    found = t.growing_calls
    if found is None or not len(finding.tasks):
        return None
    tasks, spare = tasks_of(t, found)
    again = (t.tasks.end - t.tasks.start)[tasks] * spare
    assumption = "Kernels take the share of the positions that are new, at least half as much less."
    return effect_of_tasks(t, finding, tasks, (MIN_SAVED_SHARE * again, again), assumption)


CHANGE = Change(
    id="keep-keys",
    title="Keep keys and values between tokens",
    numerics=rounding("products of one position are summed in another order than those of all"),
    advice=_advice,
    effect=_effect,
    patch=ByHand("how the model is given its cache only the script's author knows"),
    edit=ByHand("how the model is given its cache only the script's author knows"),
    without_remedy="an option of the model's",
)

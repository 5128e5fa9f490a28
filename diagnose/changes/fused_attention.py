"""Use scaled_dot_product_attention.

What it does
    Replaces product, softmax and product by one operator that keeps the scores on the chip.

What to watch
    The attention weights themselves are not there afterwards. On a CPU only attention without dropout is fused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import is_in_a_library, to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.5  # of what runs between the products: a mask or dropout may keep some of it


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    if is_in_a_library(finding):
        return Advice(
            title="Switch the library to scaled_dot_product_attention",
            before="model = AutoModel.from_pretrained(name)",
            after='model = AutoModel.from_pretrained(name, attn_implementation="sdpa")   # of transformers',
            least=MIN_SAVED_SHARE,
            needs="a release of the library whose model has it, and no use of the attention weights themselves",
        )
    if finding.facts.get("on_host"):
        masked = "scores = scores.masked_fill(mask == 0, float('-inf'))\n" if finding.facts.get("has_mask") else ""
        call = "y = F.scaled_dot_product_attention(q, k, v)"
        if finding.facts.get("has_mask"):
            call = (
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)   # a mask of what comes later\n"
                "# any other mask: attn_mask=mask, True where a query may see a key"
            )
        return Advice(
            before=f"scores = q @ k.transpose(-2, -1) * scale\n{masked}y = scores.softmax(-1) @ v",
            after=call,
            least=MIN_SAVED_SHARE,  # on one core 0.9 to 8 times as much was saved, of four sizes with their backward
            needs="no use of the attention weights themselves; scale=... where it is not 1 / sqrt(the width of a head)",
        )
    return Advice(
        before="scores = q @ k.transpose(-2, -1) * scale\ny = scores.softmax(-1) @ v",
        after="y = F.scaled_dot_product_attention(q, k, v, scale=scale)\n"
        '# for a model of transformers: from_pretrained(..., attn_implementation="sdpa")',
        least=MIN_SAVED_SHARE,
        needs="no use of the attention weights themselves",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of one kernel: what stands between the products goes, and the second one's launch."""
    import numpy as np

    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.op_launches import host_time_behind_first

    found = t.attention
    if not found or not len(finding.tasks):
        return None
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    between, products = ([getattr(attention, part) for attention in found] for part in ("between", "products"))
    # A kernel between the products reads the scores and writes them; a product does one of the two.
    moving = [np.minimum(length[p], length[b].min() / 2) for b, p in zip(between, products, strict=True)]
    goes = np.concatenate([*(length[b] for b in between), *moving])
    surely = np.concatenate([*(MIN_SAVED_SHARE * length[b] for b in between), *(0.0 * part for part in moving)])
    return effect_of_tasks(
        t,
        finding,
        np.concatenate([*between, *products]),
        (surely, goes),
        f"Between {percent(MIN_SAVED_SHARE, 0)} and all of what runs between the products goes, with its launches; at "
        "most the products move no scores any more.",
        host=host_time_behind_first(t, [np.concatenate(run) for run in zip(between, products, strict=True)]),
        host_left=(1 - MIN_SAVED_SHARE, 0.0),
        pauses_left=(1 - MIN_SAVED_SHARE, 0.0),
        frees_host=True,
    )


CHANGE = Change(
    id="fused-attention",
    title="Use scaled_dot_product_attention",
    numerics=rounding("the fused kernel adds in another order; compare the first losses"),
    patch=ByHand("the attention is written out in the model's own forward"),
    edit=ByHand("which lines are the attention only the model's author knows"),
    applies=to_kind("attention"),
    advice=_advice,
    effect=_effect,
    without_remedy="one call in place of another of torch",
)

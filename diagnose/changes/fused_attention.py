"""Use scaled_dot_product_attention.

What it does
    Replaces product, softmax and product by one operator that keeps the scores on the chip.

What to watch
    The attention weights themselves are not there afterwards.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, rounding

CHANGE = Change(
    id="fused-attention",
    title="Use scaled_dot_product_attention",
    numerics=rounding("the fused kernel adds in another order; compare the first losses"),
    patch=ByHand("the attention is written out in the model's own forward"),
    edit=ByHand("which lines are the attention only the model's author knows"),
    advice=Advice(
        before="scores = q @ k.transpose(-2, -1) * scale\ny = scores.softmax(-1) @ v",
        after="y = F.scaled_dot_product_attention(q, k, v, scale=scale)\n"
        '# for a model of transformers: from_pretrained(..., attn_implementation="sdpa")',
        least=0.5,
        needs="no use of the attention weights themselves",
    ),
    without_remedy="one call in place of another of torch",
)

"""Use scaled_dot_product_attention.

What it does
    Replaces product, softmax and product by one operator that keeps the scores on the chip.

What to watch
    The attention weights themselves are not there afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import is_in_a_library
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    if is_in_a_library(finding):
        return Advice(
            title="Let the library use scaled_dot_product_attention",
            before="model = AutoModel.from_pretrained(name)",
            after='model = AutoModel.from_pretrained(name, attn_implementation="sdpa")   # of transformers',
            least=0.5,
            needs="a release of the library whose model has it, and no use of the attention weights themselves",
        )
    return Advice(
        before="scores = q @ k.transpose(-2, -1) * scale\ny = scores.softmax(-1) @ v",
        after="y = F.scaled_dot_product_attention(q, k, v, scale=scale)\n"
        '# for a model of transformers: from_pretrained(..., attn_implementation="sdpa")',
        least=0.5,
        needs="no use of the attention weights themselves",
    )


CHANGE = Change(
    id="fused-attention",
    title="Use scaled_dot_product_attention",
    numerics=rounding("the fused kernel adds in another order; compare the first losses"),
    patch=ByHand("the attention is written out in the model's own forward"),
    edit=ByHand("which lines are the attention only the model's author knows"),
    advice=_advice,
    without_remedy="one call in place of another of torch",
)

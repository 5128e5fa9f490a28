"""Call one operator where a chain of pointwise operators is written out.

What it does
    Names the bundled operator for the chain that takes most of the time: SwiGLU, rotary embedding, softmax, GELU, a
    bias before GELU, or a norm written out. Each makes one pass over memory, forward and backward.

What to watch
    Chains of functions in a forward; for modules of their own `patch-operators` does it. On an H100, of 2^26 elements,
    forward and backward took 1/1.4 (bias and GELU, float32) to 1/13.6 (rotary embedding, bfloat16) of the chain's time.
    Written out GELU has an equal in `F.gelu`, which needs no triton.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import is_in_a_library, own_place, to_a_model_of_the_script
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


# Operators that a chain must hold, what it is then, and the call in its place. The first that fits names it.
_CHAINS: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (
        frozenset({"silu", "mul"}),
        "SwiGLU",
        "from diagnose.kernels.ops.swiglu import swiglu\n\nhidden = swiglu(gate_proj(x), up_proj(x))",
        "hidden = F.silu(gate_proj(x)) * up_proj(x)",
    ),
    (
        frozenset({"tanh", "pow", "mul"}),
        "GELU",
        'from diagnose.kernels.ops.gelu import gelu\n\ny = gelu(x, approximate="tanh")',
        "y = 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))",
    ),
    (
        frozenset({"erf", "mul"}),
        "GELU",
        "from diagnose.kernels.ops.gelu import gelu\n\ny = gelu(x)",
        "y = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))",
    ),
    (
        frozenset({"exp", "sub", "div"}),
        "softmax",
        "from diagnose.kernels.ops.softmax import softmax\n\nshares = softmax(scores)",
        "e = torch.exp(scores - scores.amax(-1, keepdim=True))\nshares = e / e.sum(-1, keepdim=True)",
    ),
    (
        frozenset({"add", "gelu"}),
        "bias and GELU",
        "from diagnose.kernels.ops.bias_gelu import bias_gelu\n\n"
        "hidden = bias_gelu(x @ linear.weight.t(), linear.bias)",
        "hidden = F.gelu(linear(x))",
    ),
    (
        frozenset({"rsqrt", "mul"}),
        "RMSNorm",
        "from diagnose.kernels.ops.norms import rms_norm\n\ny = rms_norm(x, weight, eps=eps)",
        "y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight",
    ),
)


# A concatenation stands in the middle of this one, so that only the name of its function shows it.
_ROTARY = r"rotate_half|apply_rot(ary)?|rotary_(emb|pos)"


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    chains = finding.facts.get("chains")
    first = own_place(finding)
    if first is not None and re.search(_ROTARY, f"{first.function} {first.code}"):
        return Advice(
            title="Call one operator for the rotary embedding",
            before=first.code or "query = query * cos + rotate_half(query) * sin",
            after="from diagnose.kernels.ops.rotary import rotary\n\n"
            "half = query.shape[-1] // 2   # both halves of the features have the same angles\n"
            "query = rotary(query, cos[..., :half], sin[..., :half])",
            least=0.0,
            needs="queries and keys as batch, heads, positions, features; the package triton",
        )
    for chain in chains if isinstance(chains, list | tuple) else ():
        ops = {str(op).removeprefix("aten::").rstrip("_") for op in chain}
        for needed, what, after, before in _CHAINS:
            if needed <= ops:
                place = own_place(finding)
                return Advice(
                    title=f"Call one operator for {what} in place of {len(chain)}",
                    before=(place.code or before) if place else before,
                    after=after,
                    least=0.0,
                    needs="a chain that computes this formula; the package triton",
                )
    return None


def _applies(program: Program, finding: Finding) -> str:
    if is_in_a_library(finding):
        return "a library writes the chain out"
    return to_a_model_of_the_script(program, finding)


CHANGE = Change(
    id="call-operator",
    title="Call one operator in place of a chain that is written out",
    numerics=rounding("the operator adds in another order; compare the loss of the first steps"),
    patch=ByHand("which lines are the chain only the model's author knows"),
    edit=ByHand("which lines are the chain only the model's author knows"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.ops.gelu",
    modules=(
        "diagnose.kernels.ops.bias_gelu",
        "diagnose.kernels.ops.norms",
        "diagnose.kernels.ops.rotary",
        "diagnose.kernels.ops.softmax",
        "diagnose.kernels.ops.swiglu",
    ),
)

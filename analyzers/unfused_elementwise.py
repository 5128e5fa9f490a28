"""Pointwise operators move more memory than one fused kernel would.

What it looks for
    Two or more different pointwise operators in a row, with outputs of the same size. Threshold: 10% of GPU busy time
    or of the step. Also pointwise kernels of 20 µs or more below 40% of the GPU's bandwidth.

Why it costs
    Each operator reads and writes whole tensors. A fused kernel keeps intermediate results in registers.

What to do
    Compile the model, or put `@torch.compile` on the function with these operators.

How sure
    Medium: whether the operators form a chain is inferred. Needs recorded shapes.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np

from diagnose.analyzers.common.advice import Advice, When, rounding
from diagnose.analyzers.common.fusable import pointwise_tasks
from diagnose.analyzers.common.kernel_findings import SHAPES_DOUBT, KernelRule, kernel_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.locations import in_library
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.program import Program
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="unfused-elementwise",
    kind="kernel",
    order=90,
    changes=("compile-model",),
    also=("patch-operators", "call-operator"),
    needs=("shapes",),
)
_CALLS = (  # operators that a chain must hold, what it is then, its module, and the call
    ({"silu", "mul"}, "SwiGLU", "swiglu", "swiglu", "hidden = swiglu(gate_proj(x), up_proj(x))"),
    ({"tanh", "pow", "mul"}, "GELU", "gelu", "gelu", 'y = gelu(x, approximate="tanh")'),
    ({"erf", "mul"}, "GELU", "gelu", "gelu", "y = gelu(x)"),
    ({"exp", "sub", "div"}, "softmax", "softmax", "softmax", "shares = softmax(scores)"),
    (
        {"add", "gelu"},
        "bias and GELU",
        "bias_gelu",
        "bias_gelu",
        "hidden = bias_gelu(x @ linear.weight.t(), linear.bias)",
    ),
    ({"rsqrt", "mul"}, "RMSNorm", "norms", "rms_norm", "y = rms_norm(x, weight, eps=eps)"),
)


def _called_for(operators: set[str]) -> When:
    """Return a test whether a chain of the script's own holds these operators, and the model is not compiled."""

    def fits(finding: Finding, program: Program) -> bool:
        chains = cast("list[list[str]]", finding.facts.get("chains") or [])
        held = any(operators <= {op.removeprefix("aten::").rstrip("_") for op in chain} for chain in chains)
        eager = not (program.server or program.second_derivatives or program.is_compiled)
        return held and eager and not in_library(finding.where)

    return fits


ADVICE = tuple(
    Advice(
        id="call-operator",
        title=f"Call one operator for {what}",
        numerics=rounding("the operator adds in another order; compare the loss of the first steps"),
        after=f"from diagnose.kernels.ops.{module} import {function}\n\n{call}",
        needs="a chain that computes this formula; the package triton",
        watch="Of 2^26 elements on an H100, forward and backward took 1/1.4 to 1/13.6 of the chain's time.",
        when=_called_for(operators),
        remedy=f"diagnose.kernels.ops.{module}",
    )
    for operators, what, module, function, call in _CALLS
)


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time of runs of pointwise kernels above one pass each."""
    found, alone, in_runs = t.chains, pointwise_tasks(t), Counter[tuple[str, ...]]()
    for chain in found:
        in_runs[chain.ops] += chain.time_ns
        alone[chain.tasks] = False
    # Copies are left to the rules of layouts and types.
    slow = [
        g for g in t.roofline_groups if g.share < SLOW_KERNEL_SHARE and g.op != "aten::copy_" and alone[g.tasks].all()
    ]
    tasks = np.concatenate([np.empty(0, np.intp), *(c.tasks for c in found), *(g.tasks for g in slow)])
    in_graph = 2 * sum(chain.time_ns for chain in found if chain.in_graph) > in_runs.total()
    title = "Pointwise operators move more memory than a fused pass"
    if in_graph:
        title = "Pointwise operators of a CUDA graph move more memory than a fused pass"
    elif not found:
        title = "Pointwise kernels run far below the device's bandwidth"
    doubt = "" if t.operator_inputs.is_known.any() and not in_graph else SHAPES_DOUBT
    rule = KernelRule(
        META.id,
        title,
        min_share=0.1,  # less comes back only in part when a model is compiled
        kept_ns=sum(c.longest_ns for c in found) + sum(g.bound_ns / REACHED_SHARE["memory"] for g in slow),
        evidence=(
            *(
                f"{' > '.join(op.removeprefix('aten::') for op in ops[:8])}: {duration(time / t.steps.num)} a step."
                for ops, time in in_runs.most_common(3)
            ),
            *(f"{g.op} {g.shapes}: {g.achieved()}, {percent(g.share, 0)} of the device's bandwidth." for g in slow[:3]),
        ),
        confidence="low" if doubt else "medium",
        doubt=doubt,
        facts={"chains": [list(ops) for ops, _ in in_runs.most_common(5)], "in_graph": in_graph},
    )
    return kernel_finding(t, rule, tasks)

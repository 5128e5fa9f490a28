"""Compute float32 products in fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from diagnose.changes.common.change import AddStatement, Change, EditLoop, Patch, Proposal, reduced
from diagnose.changes.patches import precision
from diagnose.changes.patches.precision import FP16_BY_HAND
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


# Of the bound of the new precision: what good libraries reach, with shapes that fit badly and with those that fit. A
# product that reaches less of its bound today may reach as little, one that reaches more may reach as much.
REACHED = (0.4, 0.7)


# Where shapes are not known, relative to the share of its peak that a product reaches in float32 (80 % with good
# libraries): the same at most, half of it at least; 16-bit products of float32 tensors also pay for their casts.
RELATIVE = {"tf32": (0.5, 1.0), "f16": (0.25, 1.0)}


def products_in(t: Tables, finding: Finding, precision: Literal["tf32", "f16"]) -> Effect | None:
    """Return the effect of the next precision on the products: by their shapes, or by the peaks' ratio without them."""
    import numpy as np

    from diagnose.model.intervals import among, distinct
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.roofline import MIN_RATED_NS, gpu_spec

    peak = gpu_spec(t)
    rate = peak.rate(precision) if peak else 0.0
    if peak is None or not rate:
        return None
    full = [group for group in t.roofline_groups if group.full_precision]
    smaller = 0.5 if precision == "f16" else 1.0  # of the bytes
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    known = np.concatenate([group.tasks for group in full]) if full else np.empty(0, np.intp)
    others = distinct(finding.tasks)
    others = others[~among(others, known)]
    others = others[length[others] >= MIN_RATED_NS]  # the fixed cost of a kernel sets the time of shorter ones
    tasks = np.concatenate([known, others]).astype(np.intp)
    if not len(tasks):
        return None
    spared = []
    today = [min(g.bound_ns / g.time_ns, 1.0) for g in full]
    by_shape = ([min(REACHED[0], now) for now in today], [max(REACHED[1], now) for now in today])
    for reached, relative in zip(by_shape, RELATIVE[precision], strict=True):
        bounds = [max(g.work.flop / rate * 1e9, g.work.bytes * smaller / peak.bandwidth) for g in full]
        share = [
            max(0.0, 1 - bound / of_it / g.time_ns) if of_it > 0 else 0.0
            for g, bound, of_it in zip(full, bounds, reached, strict=True)
        ]
        by_ratio = max(0.0, 1 - peak.rate("fp32") / rate / relative)
        parts = [length[g.tasks] * s for g, s in zip(full, share, strict=True)]
        spared.append(np.concatenate([*parts, length[others] * by_ratio]))
    name = "TF32" if precision == "tf32" else "16-bit"
    share_known = min(length[known].sum() / max(length[finding.tasks].sum(), 1.0), 1.0)
    assumption = (
        f"{percent(share_known, 0)} of the float32 products, whose shapes are known, reach {percent(REACHED[0], 0)} to "
        f"{percent(REACHED[1], 0)} of the device's {name} rate."
    )
    if len(others):
        low, high = RELATIVE[precision]
        assumption += (
            f" Those without shapes get faster by {percent(low, 0)} to {percent(high, 0)} of the ratio of the {name} "
            "peak to the float32 one."
        )
    # The rule's loss is half of the products' time, whatever their shapes; with these known the model goes further.
    time_ns = min(max(finding.total_ns / t.steps.num, finding.lost_ns), t.steps.step_ns)
    return effect_of_tasks(t, finding, tasks, (spared[0], spared[1]), assumption)._replace(limit_ns=time_ns)


STATEMENT = 'torch.set_float32_matmul_precision("high")'


def _allow_tf32_proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    if not finding.facts["has_tf32"]:
        return None
    if program.vendor == "AMD":
        return Proposal(after=STATEMENT, least=0.0, needs="an MI300 and HIPBLASLT_ALLOW_TF32=1 in the environment")
    return Proposal(after=STATEMENT, least=0.4, needs="compute capability 8.0 or later")


def _autocast_proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    has_bfloat16 = finding.facts["has_tf32"]  # such devices have bfloat16 too
    if not program.trains:
        dtype = "bfloat16" if has_bfloat16 else "float16"
        infers = program.trains is False
        mode, what = ("torch.inference_mode(), ", "outputs") if infers else ("", "results")
        stays = "" if has_bfloat16 else "; for training, with a GradScaler"
        return Proposal(
            title=f"Run the forward under autocast in {dtype}",
            before="y = model(x)",
            after=f'with {mode}torch.autocast("cuda", dtype=torch.{dtype}):\n    y = model(x)'
            + ("" if infers else f"   # backward() stays outside{stays}"),
            least=0.5,
            numerics=reduced(f"16-bit products round; compare the {what} with the float32 ones"),
            arguments={} if has_bfloat16 else {"dtype": dtype},
        )
    before = "loss = criterion(model(x), y)\nloss.backward()"
    if has_bfloat16:
        after = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)\nloss.backward()'
        return Proposal(before=before, after=after, least=0.5)
    after = (
        'scaler = torch.amp.GradScaler("cuda")\n'
        'with torch.autocast("cuda", dtype=torch.float16):\n    loss = criterion(model(x), y)\n'
        "scaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)      # before gradients are clipped or read; leave it out if they are not\n"
        "scaler.step(optimizer)\nscaler.update()"
    )
    title = "Run the forward under autocast in float16"
    return Proposal(title=title, before=before, after=after, least=0.5, arguments={"dtype": "float16"})


CHANGES = (
    Change(
        id="allow-tf32",
        page="""Allow TF32 for float32 products.

What it does
    Adds `torch.set_float32_matmul_precision("high")`. Float32 products then run on tensor cores.

What to watch
    It needs compute capability 8.0 or later, or an MI300 with `HIPBLASLT_ALLOW_TF32=1`. Other devices ignore it.
""",
        title="Allow TF32 for float32 products",
        numerics=reduced("products keep 10 bits of mantissa; compare the loss curve"),
        patch=Patch(precision.allow_tf32, needs_gpu=True),
        edit=AddStatement(STATEMENT, ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")),
        proposal=_allow_tf32_proposal,
        effect=lambda t, finding: products_in(t, finding, "tf32"),
        remedy="diagnose.kernels.matmul_precision",
    ),
    Change(
        id="autocast",
        page="""Run the forward under autocast.

What it does
    Wraps the forward: `with torch.autocast("cuda", dtype=torch.bfloat16): y = model(x)`. Products and convolutions run
    in 16 bits; operators that need float32 keep it.

What to watch
    Keep `backward()` outside. Devices without bfloat16 take float16 and need a `GradScaler`.
""",
        title="Run the forward under autocast in bfloat16",
        numerics=reduced("16-bit products round; compare the loss curve with the float32 one"),
        patch=Patch(precision.autocast),
        edit=EditLoop("with_autocast", "device", "cuda", unless={"dtype": ("float16", FP16_BY_HAND)}),
        proposal=_autocast_proposal,
        effect=lambda t, finding: products_in(t, finding, "f16"),
        to_try=lambda work: work.is_of_products and work.has_bfloat16,
        remedy="diagnose.kernels.precision",
    ),
)

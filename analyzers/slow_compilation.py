"""Compiling takes long before the first steady step.

What it looks for
    20 s or more in torch.compile, as torch counts them in a capture, by stage.

Why it costs
    The run waits for it at each start. A layer that occurs thirty times is compiled thirty times inside one graph.

What to do
    Compile the repeated layer instead of the whole model. Keep the compiler's cache between runs.

How sure
    High: torch measures it. What is saved depends on how much the layers are alike.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="slow-compilation", kind="state", order=66, host_order=66, changes=("compile-layers", "keep-compiled")
)
ADVICE = (
    Advice(
        id="compile-layers",
        title="Compile the layer that repeats instead of the whole model: one compilation serves all of its copies",
        numerics=rounding("less is fused between layers; compare the loss of the first steps"),
        before="model = torch.compile(model)",
        after="for layer in model.children():   # or the list of layers of one class\n    layer.compile()",
        needs="layers of one class with inputs of one shape",
    ),
    Advice(
        id="keep-compiled",
        title="Keep the compiler's cache between runs",
        numerics=identical(),
        before="",
        after="TORCHINDUCTOR_CACHE_DIR=compiled python {script}   # a folder that the next run finds again",
        needs="the same versions of torch, GPU and model in the next run",
    ),
)
MAX_START_S = 20.0  # that nobody minds; small models compile faster


def find(t: Tables) -> list[Finding]:
    """State how long compiling took, and where."""
    compiled = t.capture.known.compiled
    if compiled.took_s < MAX_START_S or t.recompiling is not None:  # then most of it is not at the start
        return []
    title = f"Compiling took {compiled.took_s:.0f} s of the start"
    text = f"torch.compile took {compiled.took_s:.1f} s, {compiled.backend_s:.1f} s of it to generate code."
    stages = ", ".join(f"{name} {took_s:.1f} s" for name, took_s in compiled.stages.items())
    texts = (text, *([f"By stage: {stages}."] if stages else []))
    return [Finding(META.id, title, 0.0, count=1, evidence=texts)]

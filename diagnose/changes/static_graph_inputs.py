"""Let CUDA graphs read parameters where they are.

What it does
    Compiles with graphs that know which inputs stay in place: the model's parameters and buffers are read where they
    are, and what backward needs stays in the memory of the graphs. Only a new batch is copied. Other tensors that stay,
    tables say, are marked once.

What to watch
    A tensor that is marked and then replaced by another one leads to another capture each time. Outputs live until the
    next step: what is kept longer has to be cloned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical, rounding
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

# Of the copies, what goes at least and at most. The inputs of a compiled model's graphs are mostly parameters and what
# backward keeps; a loop that replays a graph itself may copy nothing but a batch of many tensors.
COMPILED = (0.5, 0.95)
BY_HAND = (0.1, 0.95)


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if not finding.facts.get("around_graphs"):
        return None
    if not program.is_compiled:
        return Advice(
            before="for captured, tensor in zip(inputs, [*model.parameters(), batch]):\n"
            "    captured.copy_(tensor)\n"
            "graph.replay()",
            after="# captured with the model's own parameters, which optimizers update in place\n"
            "captured_batch.copy_(batch)   # what is new in a step, and nothing else\n"
            "graph.replay()",
            numerics=identical(),
            least=BY_HAND[0],
            most=BY_HAND[1],
        )
    return Advice(
        before='model = torch.compile(model, backend="cudagraphs")   # a backend that copies each input',
        after='model = torch.compile(model, mode="reduce-overhead")   # parameters are read where they are\n'
        "# of other large tensors that stay from step to step, once:\n"
        "torch._dynamo.mark_static_address(table)",
        least=COMPILED[0],
        most=COMPILED[1],
        needs="torch 2.1 or newer; parameters that the compiled model holds, and does not get as arguments",
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of copies that are no longer made, nor called for."""
    import numpy as np

    from diagnose.model.intervals import distinct
    from diagnose.replay.effects import effect_of_tasks

    if not finding.facts.get("around_graphs") or not len(finding.tasks):
        return None
    least, most = COMPILED if t.program.is_compiled else BY_HAND
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    rows = distinct(t.operators[finding.tasks])
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        (least * length, most * length),
        f"Between {percent(least, 0)} and {percent(most, 0)} of the copies need not be made, nor called for.",
        host=t.covering(rows[rows >= 0]),
        host_left=(1 - least, 1 - most),
        pauses_left=(1 - least, 1 - most),
        frees_host=True,
    )


CHANGE = Change(
    id="static-graph-inputs",
    title="Mark the parameters as static inputs of the CUDA graphs, and copy new batches only",
    numerics=rounding("fused kernels round differently; compare the loss of the first steps"),
    patch=ByHand("how the graphs are captured only the script's author knows"),
    edit=ByHand("how the graphs are captured only the script's author knows"),
    advice=_advice,
    effect=_effect,
    without_remedy="an argument of torch.compile",
)

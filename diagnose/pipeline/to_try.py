"""Changes whose effect no recording of a CPU shows, and a trial does: fewer bits, another layout, compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.analyzers import META, WORK
from diagnose.changes import CHANGES
from diagnose.changes.common.change import HostWork
from diagnose.model.charts import HostOperator
from diagnose.model.diagnosis import Prescription
from diagnose.tables import Tables
from diagnose.tables.program import program_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["to_try"]

MIN_COMPUTED = 0.5  # of the step, in operators: else there is more to gain elsewhere
_CONVOLUTION = lazy_pattern(r"^aten::(mkldnn_convolution\w*|convolution_backward|_slow_conv\w+|thnn_conv\w+)$")
_PRODUCT = lazy_pattern(
    r"^aten::(mm|addmm|bmm|baddbmm|mkldnn_rnn_layer\w*|_scaled_dot_product_flash_attention_for_cpu\w*)$|"
    + _CONVOLUTION.pattern
)


def to_try(
    t: Tables, shares: Mapping[str, float], operators: Sequence[HostOperator], prescribed: Sequence[Prescription]
) -> tuple[str, ...]:
    """Return the ids of changes that a trial may show to help, where operators take most of a step without a device.

    How fast a CPU computes in 16 bits, in another layout or in fused loops depends on its instructions and its caches:
    a script that took 440 ms a step took 239 ms under autocast and 310 ms compiled; a small model of depthwise
    convolutions took a third longer under autocast, a small convolutional one two thirds longer compiled.

    On a device, changes for what only a trial shows to be avoidable. Of several ranks nothing is named: the command
    does not start them.

    Args:
        t: the recorded steps.
        shares: of the step, by cause.
        operators: the most expensive ones, by self time.
        prescribed: changes that a finding has brought up already, most of them with a prediction.
    """
    info, program, step_ns = t.capture.info, program_of(t), t.steps.step_ns
    if t.device_id >= 0 and t.trace.world_size <= 1:
        return tuple(dict.fromkeys(p.id for p in prescribed if not META[p.rule].is_avoidable and p.id in CHANGES))
    if t.device_id >= 0 or info is None or info.world_size > 1 or not step_ns or shares.get(WORK, 0.0) < MIN_COMPUTED:
        return ()
    products, convolutions = (
        sum(each.self_ns for each in operators if pattern.match(each.name)) / step_ns
        for pattern in (_PRODUCT, _CONVOLUTION)
    )
    in_float32 = 0.0 if info.flags.autocast.dtype else products
    work = HostWork(in_float32, convolutions, info.flags.bfloat16 is True, program.is_compiled)
    known = {p.id for p in prescribed if p.predicted_step_ns is not None}
    fitting = (change.id for change in CHANGES.values() if change.to_try is not None and change.to_try(work))
    return tuple(name for name in fitting if name not in known)

"""Values go to the CPU and back, or Python reads them one by one.

What it looks for
    Copies of constants to the GPU, such as `torch.zeros(n)`, or of values that the same step read from the GPU. Also
    lines that read eight or more elements one by one. Threshold: 3% of the step.

Why it costs
    The CPU waits for all queued work, and the GPU waits for the copy back.

What to do
    Create the tensor on the GPU, or once before the loop. Use operators on whole tensors, such as
    `torch.repeat_interleave` or `gather`, or read all values with one `.tolist()`.

How sure
    High for the copies. The cost of single reads is an estimate. Needs `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.avoidable import (
    Avoidable,
    AvoidableRule,
    at,
    avoidable_time,
    calling_share,
    calling_time,
    issuer,
)
from diagnose.model.intervals import Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="host-round-trip",
    kind="idle",
    order=123,
    host_order=66,
    legend=Legend("values went through Python or the host's memory"),
    changes=("make-on-device", "vectorise-loop"),
    needs=("data flow",),
)
_HOW = {
    "round-trip": "goes from the device to the host and back",
    "constant": "is copied to the device in each step with the same content",
    "made-on-host": "is made on the host in each step and copied to the device",
}


def detect(flow: Flow) -> list[Avoidable]:
    """Return copies and reads by element, the longest first."""
    parts = []
    for trip in flow.found.host_round_trips:
        text = f"What {at(trip.value_line or trip.use_line)} makes {_HOW[trip.kind]} at {at(trip.use_line)}."
        title = "Values are copied to the device that need not come from the host"
        lines = (trip.value_line, trip.use_line, *trip.work.lines)
        parts.append(Avoidable(title, text, trip.work, lines, {"kind": trip.kind}))
    for one in flow.found.read_by_element:
        made = f", of a tensor that {at(one.value_line)} makes." if one.value_line is not None else "."
        text = f"Python reads {one.num_reads:,} elements one by one at {at(one.line)}{made}"
        facts = {"kind": "by-element", "issuer": issuer(one.line, one.work, one.num_reads)}
        share, lines = calling_share(one.work, one.overhead_share), (one.line, *one.work.lines)
        parts.append(Avoidable("Python reads a tensor element by element", text, one.work, lines, facts, share))
    return sorted(parts, key=lambda one: -one.work.share * one.avoidable)


def spared(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return the time of copies, and of reads by element what calling them takes."""
    return (calling_time if one.facts["kind"] == "by-element" else avoidable_time)(t, flow, one)


_RULE = AvoidableRule(META, detect, time_of=spared)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find

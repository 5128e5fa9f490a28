"""Values go to the host and back, or Python reads them one by one.

What it looks for
    Copies to the device of what came from the device in the same step, of what operators on the host made from nothing,
    and of what was the same in the step before. And lines at which Python reads eight parts of one tensor or more, one
    after the other, to slice, repeat or choose by them. At least 3 % of the step.

Why it costs
    A copy off the device waits for all that is queued, and the device waits for the copy back. Each read of an element
    takes a few calls of operators, and what Python then does with it takes more, once for each element.

What to do
    Make the tensor where it is used, or once before the loop. Let an operator take the whole tensor:
    `torch.repeat_interleave`, `gather`, a mask; or read all of it at once by `.tolist()`.

How sure
    High that the values take this way. What reads one by one cost is estimated as the Python between the operators and
    the calls of all turns but one, if they cost no more than the cheapest operators do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at, avoidable_time, calling_share, issuer
from diagnose.analyzers.common.loops import calling
from diagnose.model.intervals import Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

if TYPE_CHECKING:
    from diagnose.dataflow.placement import HostRoundTrip, ReadByElement

META = RuleMeta(
    id="host-round-trip",
    kind="idle",
    order=123,
    host_order=66,
    legend=Legend("values went through Python or the host's memory", "#6b7f3f"),
    changes=("make-on-device", "vectorise-loop"),
    needs=("data flow",),
)
_HOW = {
    "round-trip": "goes from the device to the host and back",
    "constant": "is copied to the device in each step with the same content",
    "made-on-host": "is made on the host in each step and copied to the device",
}


def _detect(flow: Flow) -> list[Avoidable]:
    parts = [*map(_copied, flow.found.host_round_trips), *map(_read, flow.found.read_by_element)]
    return sorted(parts, key=lambda one: -one.work.share * one.avoidable)


def _copied(one: HostRoundTrip) -> Avoidable:
    text = f"What {at(one.value_line or one.use_line)} makes {_HOW[one.kind]} at {at(one.use_line)}."
    title = "Values are copied to the device that need not come from the host"
    return Avoidable(title, text, one.work, (one.value_line, one.use_line, *one.work.lines), {"kind": one.kind})


def _read(one: ReadByElement) -> Avoidable:
    text = f"Python reads {one.num_reads:,} elements one by one at {at(one.line)}"
    text += f", of a tensor that {at(one.value_line)} makes." if one.value_line is not None else "."
    facts = {"kind": "by-element", "issuer": issuer(one.line, one.work, one.num_reads)}
    avoidable = calling_share(one.work, one.overhead_share)
    lines = (one.line, *one.work.lines)
    return Avoidable("Python reads a tensor element by element", text, one.work, lines, facts, avoidable)


def _time_of(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    return (calling if one.facts["kind"] == "by-element" else avoidable_time)(t, flow, one)


_RULE = AvoidableRule(META, _detect, time_of=_time_of)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find

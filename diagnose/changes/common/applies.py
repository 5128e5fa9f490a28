"""Whether a change fits a program, as far as the trace shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Proposal
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import in_library, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding, Where
    from diagnose.model.host_reads import WaitsFor
    from diagnose.tables.program import Program

# What compiling costs, and how what a CUDA graph captures is compiled.

# Small models took 31 to 42 s on two cores of a CPU, with an empty cache.
COMPILATION = "a compilation of tens of seconds at the start"


def compiled_before_capture(program: Program, *, title: str, least: float, most: float) -> Proposal:
    """Return how nodes of a graph become fewer."""
    is_inference = program.trains is False
    step = "output = model(static_input)" if is_inference else "loss = whole_step(static_input, static_target)"
    compiled = "model = torch.compile(model)" if is_inference else "whole_step = torch.compile(whole_step)"
    captured = f"with torch.cuda.graph(graph):\n    {step}"
    return Proposal(
        title=title,
        before=captured,
        after=f"{compiled}   # called three times before the capture\n{captured}",
        least=least,
        most=most,
        needs="calls of the compiled function before the capture, in which it compiles; a new capture",
    )


_WAITS = r"synchroni[sz]e|wait"


def to_training(program: Program, _finding: Finding) -> bool:
    """Return whether the recorded steps may have a backward."""
    return program.trains is not False


def to_data_parallel_training(program: Program, _finding: Finding) -> bool:
    """Return whether the model may be wrapped in DistributedDataParallel."""
    return program.trains is not False and program.is_ddp is not False


def to_a_model_of_the_script(program: Program, _finding: Finding) -> bool:
    """Return whether `model = torch.compile(model)` fits: no server makes the model, and it is not compiled yet.

    A program that takes gradients of gradients cannot be compiled.
    """
    return not (program.server or program.second_derivatives or program.is_compiled)


def to_launches_without_graphs(program: Program, finding: Finding) -> bool:
    """Return whether launches can be captured: none are yet, nothing grows, the host hardly waits between them."""
    return not program.has_graphs and not program.grows and graphable(finding) >= MAJORITY


def to_calls_of_the_model(finding: Finding) -> bool:
    """Return whether the model calls most of the operators, and not a loop of the script's outside of it."""
    issuer = finding.facts.get("issuer")
    if not isinstance(issuer, Mapping) or issuer.get("in_model"):
        return True
    share = issuer.get("share")
    return isinstance(share, float) and share < MAJORITY and bool(finding.facts.get("has_device"))


def graphable(finding: Finding) -> float:
    """Return the share of a finding's cost that lies in intervals which a graph can hold; 1 where it is not known."""
    share = finding.facts.get("graphable")
    return float(share) if isinstance(share, float) else 1.0


def script_of(program: Program) -> str:
    """Return the name of a script in an example."""
    return "infer.py" if program.trains is False else "train.py"


def empties_cache(finding: Finding) -> Where | None:
    """Return the first place whose line gives the allocator's cached memory back to the driver."""
    return next((place for place in finding.where if place.code and "empty_cache(" in place.code), None)


def waits_for(finding: Finding) -> WaitsFor:
    """Return what the host waits for, in most of the time that the finding names."""
    from diagnose.model.host_reads import SHARES, as_reason, read_by

    reason, place = as_reason(finding.facts.get("waits_for")), own_place(finding.where)
    if reason == "synchronize" and place is not None and place.code and not re.search(_WAITS, place.code):
        return "value"  # the line reads one, whatever the trace shows of it
    if reason is not None:
        return reason
    for share, why in SHARES.items():
        value = finding.facts.get(share)
        if isinstance(value, float) and value >= MAJORITY:
            return why
    first = [w.op for w in finding.where[:1] if w.op]
    path = [name for example in finding.examples[:1] for name in example.host.split(" > ")]
    return read_by((*first, *path))


def to_copies_to_the_device(_program: Program, finding: Finding) -> bool:
    """Return whether the wait is for a copy to the device; a finding of copies counts them."""
    return "num" in finding.facts or waits_for(finding) == "copy"


def to_values_read(_program: Program, finding: Finding) -> bool:
    """Return whether the script itself waits for a value, which it can read later."""
    return waits_for(finding) == "value" and not in_library(finding.where)


def to_shapes_and_branches(_program: Program, finding: Finding) -> bool:
    """Return whether a shape or a branch of the script's own depends on the value that is waited for."""
    return waits_for(finding) in ("shape", "branch", "exchange") and not in_library(finding.where)

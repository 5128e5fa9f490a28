"""Why a change does not fit a program: a clause each, "" where it fits as far as the trace shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding, Where
    from diagnose.model.host_reads import WaitsFor
    from diagnose.tables.program import Program

__all__ = [
    "at_line",
    "graphable",
    "is_in_a_library",
    "is_in_a_module",
    "is_of_a_hook",
    "own_place",
    "script_of",
    "to_a_model_of_the_script",
    "to_an_eager_model",
    "to_calls_of_the_model",
    "to_copies_to_the_device",
    "to_data_parallel_training",
    "to_kind",
    "to_launches_without_graphs",
    "to_shapes_and_branches",
    "to_training",
    "to_values_read",
    "waits_for",
]

_LIBRARY_WAITS = "a library waits for the device there"
_WAITS = r"synchroni[sz]e|wait"
MOSTLY = 0.5  # of the calls: what fewer do is not what the finding is about


def to_training(program: Program, _finding: Finding) -> str:
    """Return why a change to gradients or the optimizer does not fit inference."""
    return "the recorded steps have no backward: the program runs inference" if program.trains is False else ""


def to_kind(wanted: str) -> Callable[[Program, Finding], str]:
    """Return a test whether a finding that has kinds is of the one that a change is for."""

    def applies(_program: Program, finding: Finding) -> str:
        kind = finding.facts.get("kind", wanted)
        return "" if kind == wanted else f"the finding is about {kind}"

    return applies


def to_an_eager_model(program: Program, _finding: Finding) -> str:
    """Return why compiling does not fit a model that is compiled, or whose gradients are differentiated."""
    if program.second_derivatives:
        return "the program takes gradients of gradients, which torch.compile does not"
    return "the model is compiled already" if program.is_compiled else ""


def to_a_model_of_the_script(program: Program, finding: Finding) -> str:
    """Return why `model = torch.compile(model)` does not fit: a server compiles by its own options."""
    served = f"{program.server} makes the model, and compiles it by its own options" if program.server else ""
    return served or to_an_eager_model(program, finding)


def to_launches_without_graphs(program: Program, finding: Finding) -> str:
    """Return why capturing launches does not fit a program that replays graphs, or one that waits between launches."""
    if program.has_graphs:
        return "launches are replayed as CUDA graphs already"
    if program.grows:
        return "a tensor grows piece by piece, and a graph holds one length: make it once and write into it first"
    waits = graphable(finding) < MOSTLY
    return "the host waits for the device every few launches, and a graph holds no wait" if waits else ""


def to_calls_of_the_model(finding: Finding) -> str:
    """Return why compiling the model does not fit a loop outside of it that calls most of the operators."""
    issuer = finding.facts.get("issuer")
    if not isinstance(issuer, Mapping) or issuer.get("in_model"):
        return ""
    share = issuer.get("share")
    if isinstance(share, float) and share < MOSTLY and finding.facts.get("has_device"):
        return ""
    return "the operators are called by the script's own loop, outside the model"


def graphable(finding: Finding) -> float:
    """Return the share of a finding's cost that lies in intervals which a graph can hold; 1 where it is not known."""
    share = finding.facts.get("graphable")
    return float(share) if isinstance(share, float) else 1.0


def to_data_parallel_training(program: Program, finding: Finding) -> str:
    """Return why arguments of DistributedDataParallel do not fit a program without it."""
    without = "the model is not wrapped in DistributedDataParallel" if program.is_ddp is False else ""
    return to_training(program, finding) or without


def script_of(program: Program) -> str:
    """Return the name of a script in an example."""
    return "infer.py" if program.trains is False else "train.py"


def own_place(finding: Finding) -> Where | None:
    """Return the first place in the user's own files: a line of a library or of generated code cannot be edited."""
    from diagnose.model.locations import is_own_file

    return next((w for w in finding.where if w.file and is_own_file(w.file)), None)


def empties_cache(finding: Finding) -> Where | None:
    """Return the first place whose line gives the allocator's cached memory back to the driver."""
    return next((place for place in finding.where if place.code and "empty_cache(" in place.code), None)


def at_line(place: Where) -> str:
    """Return "model.py:40", "model.py" without a line: of a full path the name alone, the finding has the rest."""
    file = place.file or ""
    name = file.rpartition("/")[2] if file.startswith("/") else file
    return name if place.line is None else f"{name}:{place.line}"


def is_in_a_library(finding: Finding) -> bool:
    """Return whether a library or generated code does it, inside a line of the user's or without one."""
    place = next((w for w in finding.where if w.file or w.library), None)
    return place is not None and (place.library is not None or own_place(finding) is None)


def is_in_a_module(finding: Finding) -> bool:
    """Return whether a module calls the place: it belongs to a forward, whose result the step needs at once."""
    return _caller(finding) == "module"


def is_of_a_hook(finding: Finding) -> bool:
    """Return whether the place is of a hook, which no dataset can take over."""
    return _caller(finding) == "hook"


def _caller(finding: Finding) -> str:
    place = next((w for w in finding.where if w.file or w.library), None)
    return place.caller if place is not None else ""


def waits_for(finding: Finding) -> WaitsFor:
    """Return what the host waits for, in most of the time that the finding names."""
    from diagnose.model.host_reads import SHARES, as_reason, read_by

    reason, place = as_reason(finding.facts.get("waits_for")), own_place(finding)
    if reason == "synchronize" and place is not None and place.code and not re.search(_WAITS, place.code):
        return "value"  # the line reads one, whatever the trace shows of it
    if reason is not None:
        return reason
    for share, why in SHARES.items():
        value = finding.facts.get(share)
        if isinstance(value, float) and value >= MOSTLY:
            return why
    first = [w.op for w in finding.where[:1] if w.op]
    path = [name for example in finding.examples[:1] for name in example.host.split(" > ")]
    return read_by((*first, *path))


def to_copies_to_the_device(_program: Program, finding: Finding) -> str:
    """Return why copying ahead does not fit a wait for something else; a finding of copies counts them."""
    return "" if "num" in finding.facts or waits_for(finding) == "copy" else "the host waits for no copy to the device"


def to_values_read(_program: Program, finding: Finding) -> str:
    """Return why reading later does not fit a wait for something else than a value."""
    waited = waits_for(finding)
    if waited == "copy":
        return "the host waits for a copy to the device, and reads nothing"
    if waited == "exchange":
        return "an exchange of the ranks needs the value in the same step"
    if is_in_a_library(finding):
        return _LIBRARY_WAITS
    if waited == "synchronize":
        return "the host waits for the device alone, and reads nothing"
    return "" if waited == "value" else f"the host waits for a {waited}, which cannot come later"


def to_shapes_and_branches(_program: Program, finding: Finding) -> str:
    """Return why other operators do not fit a wait for a value."""
    waited = waits_for(finding)
    if waited == "copy":
        return "the host waits for a copy to the device: no shape or branch depends on it"
    if is_in_a_library(finding):
        return _LIBRARY_WAITS
    if waited == "synchronize":
        return "the host waits for the device alone: no shape or branch depends on it"
    return "the script reads a value: no shape or branch depends on it" if waited == "value" else ""

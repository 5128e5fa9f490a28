"""Why a change does not fit a program: a clause each, "" where it fits as far as the trace shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding, Where
    from diagnose.tables.program import Program

__all__ = [
    "at_line",
    "is_in_a_library",
    "is_in_the_model",
    "own_place",
    "script_of",
    "to_a_model_of_the_script",
    "to_an_eager_model",
    "to_data_parallel_training",
    "to_launches_without_graphs",
    "to_shapes_and_branches",
    "to_the_device",
    "to_training",
    "to_values_read",
    "waits_for",
]

_LIBRARY_WAITS = "a library waits for the device there"
MOSTLY = 0.5  # of the calls: what fewer do is not what the finding is about
# Operators whose result's shape depends on values, and those that a branch in Python rests on.
_SHAPES = frozenset(
    f"aten::{name}"
    for name in (
        *("nonzero", "masked_select", "index", "index_put", "index_put_", "_index_put_impl_", "where", "bincount"),
        *("_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
    )
)
_BRANCHES = frozenset({"aten::is_nonzero", "aten::equal", "aten::allclose"})
_READS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::to", "aten::_to_copy", "aten::copy_"})


def to_training(program: Program, _finding: Finding) -> str:
    """Return why a change to gradients or the optimizer does not fit inference."""
    return "the recorded steps have no backward: the program runs inference" if program.trains is False else ""


def to_an_eager_model(program: Program, _finding: Finding) -> str:
    """Return why compiling does not fit a model that is compiled."""
    return "the model is compiled already" if program.is_compiled else ""


def to_a_model_of_the_script(program: Program, finding: Finding) -> str:
    """Return why `model = torch.compile(model)` does not fit: a server compiles by its own options."""
    served = f"{program.server} makes the model, and compiles it by its own options" if program.server else ""
    return served or to_an_eager_model(program, finding)


def to_launches_without_graphs(program: Program, _finding: Finding) -> str:
    """Return why capturing launches does not fit a program that replays graphs."""
    return "launches are replayed as CUDA graphs already" if program.has_graphs else ""


def to_data_parallel_training(program: Program, finding: Finding) -> str:
    """Return why arguments of DistributedDataParallel do not fit a program without it."""
    without = "the model is not wrapped in DistributedDataParallel" if program.is_ddp is False else ""
    return to_training(program, finding) or without


def script_of(program: Program) -> str:
    """Return the name of a script in an example."""
    return "infer.py" if program.trains is False else "train.py"


def own_place(finding: Finding) -> Where | None:
    """Return the first place in the user's own files: a line of a library or of generated code cannot be edited."""
    from diagnose.analyzers.common.locate import is_own_file

    return next((w for w in finding.where if w.file and is_own_file(w.file)), None)


def at_line(place: Where) -> str:
    """Return "model.py:40": a title names the line, the finding the whole path."""
    return f"{(place.file or '').rpartition('/')[2]}:{place.line}"


def is_in_a_library(finding: Finding) -> bool:
    """Return whether a library or generated code does it, inside a line of the user's or without one."""
    place = next((w for w in finding.where if w.file), None)
    return place is not None and (place.library is not None or own_place(finding) is None)


def is_in_the_model(finding: Finding) -> bool:
    """Return whether the place is called by a module or is a hook, which no dataset can take over."""
    place = next((w for w in finding.where if w.file), None)
    return place is not None and place.caller != ""


def waits_for(finding: Finding) -> Literal["shape", "branch", "value"]:
    """Return what the host waits for: the shape of a result, which branch to take, or a value that it reads."""
    first = [w.op for w in finding.where[:1] if w.op]
    path = [name for example in finding.examples[:1] for name in example.host.split(" > ")]
    for op in (*first, *path):  # the outermost operator first: it is the one that the script calls
        if op in _BRANCHES:
            return "branch"
        if op in _SHAPES:
            return "shape"
        if op in _READS:
            return "value"
    return "value"


def to_the_device(finding: Finding) -> bool:
    """Return whether most of the blocking calls wait for copies from the host to the device."""
    share = finding.facts.get("to_device")
    return isinstance(share, float) and share >= MOSTLY


def to_values_read(_program: Program, finding: Finding) -> str:
    """Return why reading later does not fit a wait for a shape or a branch."""
    if to_the_device(finding):
        return "the host waits for a copy to the device, and reads nothing"
    share = finding.facts.get("feeds_exchange")
    if isinstance(share, float) and share >= MOSTLY:
        return "an exchange of the ranks needs the value in the same step"
    if is_in_a_library(finding):
        return _LIBRARY_WAITS
    waited = waits_for(finding)
    return "" if waited == "value" else f"the host waits for a {waited}, which cannot come later"


def to_shapes_and_branches(_program: Program, finding: Finding) -> str:
    """Return why other operators do not fit a wait for a value."""
    if to_the_device(finding):
        return "the host waits for a copy to the device: no shape or branch depends on it"
    if is_in_a_library(finding):
        return _LIBRARY_WAITS
    return "the script reads a value: no shape or branch depends on it" if waits_for(finding) == "value" else ""

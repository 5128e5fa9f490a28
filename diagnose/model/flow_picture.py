"""The picture of a part of a step's data flow: its operators as nodes, the values between them as edges."""

from __future__ import annotations

from typing import Literal, NamedTuple

from diagnose.model.diagnosis import Where

__all__ = ["FlowNode", "FlowPicture", "Mark"]

Mark = Literal["", "result", "use", "unused"]
"""What the named operators make in the end, the operator that reads it, a result that no operator reads."""


class FlowNode(NamedTuple):
    """One operator of a picture of the data flow."""

    operator: str  # "mm"
    where: Where
    phase: str  # forward, backward, optimizer, other
    shape: tuple[int, ...]  # of its first result
    dtype: str  # "" without a result
    reads: tuple[int, ...]  # earlier nodes, by their numbers
    inputs: tuple[str, ...]  # of what no operator of the step made: names of parameters and buffers, roles
    share: float  # of the operator time of its step
    is_named: bool  # by the finding
    mark: Mark
    num_before: int  # operators left out between the node before and this one


class FlowPicture(NamedTuple):
    """The part of a step's data flow that a finding names, in the order in which the operators ran."""

    rule: str
    nodes: tuple[FlowNode, ...]
    num_operators: int  # of the step, views not counted
    num_named: int  # by the finding
    share: float  # of the operator time, that the named ones take
    num_after: int  # operators left out after the last node

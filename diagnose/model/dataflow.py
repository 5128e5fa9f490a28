"""One or two steps as a program: its operators, and the values that they read and write.

A trace shows when operators ran; this table shows what they did. It is written beside the traces of a capture
(``rank0.dataflow.json.gz``) and read without torch. All numbers of operators and values are indices into the tuples of
`Dataflow`, in the order in which the steps made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Phase: TypeAlias = Literal["forward", "backward", "optimizer", "other"]
Role: TypeAlias = Literal["", "parameter", "buffer", "gradient", "optimizer state", "input", "constant", "state"]
"""What a value is to the program: "input" was not there in the step before, "constant" was, "state" outlives a step."""


ASKS_FOR_GRADIENT = "python::requires_grad_"
"""The name of what asks for the gradient of a value that is no parameter: an operator that makes a view."""

TAKES_OVER = "python::from_numpy"
"""The name of what makes a tensor of an array: an operator that makes a view of it."""


class Frame(NamedTuple):
    """One level of a Python stack: the first line of the statement that ran."""

    file: str
    line: int
    function: str


def line_words(frame: Frame | None) -> str:
    """Return a line as sentences name it: "line 41 of model.py"."""
    return f"line {frame.line} of {frame.file.rpartition('/')[2]}" if frame is not None else "a line that is not known"


class Use(NamedTuple):
    """One tensor argument or result of an operator: a value, seen through a view."""

    value: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements
    dtype: str  # "float32", as torch names it


class Value(NamedTuple):
    """One version of one storage: each operator that writes into a storage makes a new one."""

    storage: int
    version: int  # 0 where the storage came to be, or was first seen
    dtype: str  # of the tensor that was seen first
    shape: tuple[int, ...]  # of that tensor
    device: str  # "cpu", "cuda:0"
    num_bytes: int  # of the storage
    producer: int  # operator, -1 for a value that was there before it was first read
    role: Role = ""
    name: str = ""  # of a parameter or buffer: its qualified name
    fingerprint: str = ""  # equal for equal contents, shape and dtype; "" where the content was not looked at
    is_exact: bool = False  # whether the fingerprint is of all elements, not of a sample
    zeros: float = -1.0  # share of elements that are 0, of those looked at; -1 where none were
    # Share of the last dimension, at either end, that is one constant in all rows, -1 where unknown; of rows that all
    # have one length it is in the second.
    padded: float = -1.0
    evenly_padded: float = -1.0
    zero_rows: float = -1.0  # share of rows (all dimensions but the last) that are 0 throughout, -1 where unknown
    # Of three dimensions: share of the second one, at either end, that is one constant in all of the others.
    padded_rows: float = -1.0
    kind: Literal["", "one-hot", "triangular", "diagonal", "constant", "outer"] = ""  # of the content
    subnormal: float = 0.0  # share of elements
    is_one: bool = False  # whether all elements looked at are 1, up to rounding
    is_kept: bool = False  # for the backward pass
    dies: int = -1  # operator after which the storage is freed, -1 if it lives on at the end of the steps


class Operator(NamedTuple):
    """One call of the dispatcher below autograd."""

    step: int  # 0 or 1
    name: str  # with its overload: "aten::add_.Tensor"
    phase: Phase
    start_ns: int  # from the first operator
    host_ns: int  # of the call; on a CPU the computing is in it
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]  # new values: results that are no views, and arguments written in place
    stack: tuple[Frame, ...] = ()  # the user's frames, innermost first; of a backward operator those of its forward
    module: str = ""  # qualified name of the innermost module, "" outside
    sequence_nr: int = -1  # of autograd: backward operators have that of their forward operator
    thread: int = 0
    attributes: str = ""  # arguments that are no tensors, as text: two calls are equal if this and their reads are
    is_view: bool = False
    draws: bool = False  # reads or moves a random state
    reads_host: bool = False  # Python gets its content: .item(), bool(), .tolist(), nonzero's size, .numpy()
    is_collective: bool = False
    is_opaque: bool = False  # compiled or custom: it may have effects that its schema does not name
    forward: int = -1  # of a backward operator: its forward operator, if known

    @property
    def has_effects(self) -> bool:
        """Return whether an operator does something besides what it writes, or may do so."""
        return self.reads_host or self.is_collective or self.is_opaque

    @property
    def place(self) -> Frame | None:
        """Return the innermost line of the user's code, None if there is none."""
        return self.stack[0] if self.stack else None


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Whole steps of one rank; they ran under a dispatch mode, so that their times are shares, not lengths."""

    operators: tuple[Operator, ...]
    values: tuple[Value, ...]
    num_steps: int
    rank: int = 0
    left_out: tuple[str, ...] = ()  # what could not be looked at, one sentence each
    cost_ns: int = 0  # what looking took, beyond the operators
    roots: frozenset[int] = frozenset()  # values that outlive the steps: what writes them is needed
    held: frozenset[int] = frozenset()  # storages of parameters with learning rate 0, and of their optimizer's state

"""A data flow written by hand: each call adds a value or an operator to the step at hand."""

from __future__ import annotations

from math import prod

from diagnose.dataflow.graph import Graph, graph_of
from diagnose.model.dataflow import Dataflow, Frame, Operator, Role, Use, Value

FILE = "train.py"
BYTES = {"float64": 8, "int64": 8, "bfloat16": 2, "bool": 1}


class Table:
    """Builds the columns; a result has a content of its own unless one is given."""

    def __init__(self) -> None:
        self.step = 0
        self.operators: list[Operator] = []
        self.values: list[Value] = []
        self.roots: set[int] = set()
        self.held: set[int] = set()  # storages

    def value(self, *shape: int, role: Role = "input", content: str = "", dtype: str = "float32", **more) -> Use:
        """Add a value that was there before it was read."""
        return self._add(shape, dtype, -1, content, role=role, **more)

    def op(
        self, name: str, *reads: Use, shape: tuple[int, ...] | None = None, line: int = 1, ns: int = 10, **more
    ) -> Use:
        """Add an operator and return its result, of the first argument's shape unless another is given."""
        content, dtype = more.pop("content", ""), more.pop("dtype", reads[0].dtype if reads else "float32")
        into, facts, at = more.pop("into", None), more.pop("facts", {}), more.pop("at", ())
        phase = more.pop("phase", "forward")
        stack = more.pop("stack", tuple(Frame(FILE, each, "step") for each in (line, *at)) if line else ())
        number = len(self.operators)
        if into is not None:
            facts = {"storage": self.values[into.value].storage, "version": self._next_version(into), **facts}
        shape = shape if shape is not None else (into or reads[0]).shape
        use = self._add(shape, dtype, number, content, **facts)
        more.setdefault("writes", (use,))
        reads = (*reads, into) if into is not None else reads
        fields = {"name": f"aten::{name}", "phase": phase, "start_ns": 10 * number, "host_ns": ns, "stack": stack}
        self.operators.append(Operator(step=self.step, reads=reads, **fields, **more))
        return use

    def read_on_host(self, use: Use, line: int = 1) -> None:
        """Read a value by Python."""
        self.op("_local_scalar_dense", use, line=line, ns=0, writes=(), reads_host=True)

    def update(self, weight: Use, *reads: Use, line: int = 99, ns: int = 1) -> Use:
        """Change a parameter in place and return what it is then."""
        return self.op("add_.Tensor", *reads, into=weight, line=line, ns=ns, phase="optimizer")

    def graph(self) -> Graph:
        """Return the graph of what was added."""
        sets = {"roots": frozenset(self.roots), "held": frozenset(self.held)}
        flow = Dataflow(tuple(self.operators), tuple(self.values), self.step + 1, **sets)
        return graph_of(flow)

    def _next_version(self, use: Use) -> int:
        storage = self.values[use.value].storage
        return 1 + max(value.version for value in self.values if value.storage == storage)

    def _add(self, shape: tuple[int, ...], dtype: str, producer: int, content: str, **more) -> Use:
        number = len(self.values)
        num_bytes = prod(shape) * BYTES.get(dtype, 4)
        fingerprint = f"{content or f'own {number}'} {shape} {dtype}"
        known = Value(number, 0, dtype, shape, "cpu", num_bytes, producer, fingerprint=fingerprint, is_exact=True)
        self.values.append(known._replace(**more))
        return Use(number, shape, strides(shape), 0, dtype)


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def lines(work) -> list[int]:
    """Return the numbers of a record's lines in order."""
    return sorted(frame.line for frame in work.lines)

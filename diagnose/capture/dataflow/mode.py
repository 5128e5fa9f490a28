"""The dispatch mode under which steps run: it notes each operator below autograd and changes nothing."""

from __future__ import annotations

import sys
import threading
import time
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.capture.dataflow.calls import Attribute, Call, sorted_arguments, tensors_in
from diagnose.capture.dataflow.contents import Contents
from diagnose.capture.dataflow.modules import Modules
from diagnose.capture.dataflow.schemas import Schema
from diagnose.capture.dataflow.stacks import FUNCTION, Stacks, Walk
from diagnose.capture.dataflow.storages import PENDING, UNSEEN, RawUse, Storages

__all__ = ["FlowMode", "RawOperator"]

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_MASKS = frozenset({torch.bool, torch.uint8})
MAX_OPERATORS = 200_000  # each takes 1.5 kB of memory
_NO_NUMBER = 1 << 62  # nodes that accumulate gradients have the largest number of 64 bits


class RawOperator(NamedTuple):
    """One operator as it is known while the steps run."""

    step: int
    schema: Schema
    start_ns: int
    host_ns: int
    reads: list[RawUse]
    writes: list[RawUse]
    attributes: list[Attribute]
    walk: Walk
    module: int
    node: int  # number of autograd's node that is being executed, -1 outside of a backward pass
    in_backward: bool
    has_gradients: bool  # whether they were switched on
    thread: int
    is_view: bool
    masks: bool  # an index is a mask


class FlowMode(TorchDispatchMode):
    """Notes operators while ``is_on``; ``failure`` is why it ended by itself."""

    supports_higher_order_operators = True

    def __init__(self, contents: Contents, modules: Modules) -> None:
        super().__init__()
        self.operators: list[RawOperator] = []
        self.storages = Storages(lambda: len(self.operators) - 1)
        self.stacks = Stacks()
        self.makers: dict[tuple[int, int], int] = {}  # operators by thread and number of the node made for them
        self.step = 0
        self.cost_ns = 0
        self.failure = ""
        self.is_on = True
        self._contents, self._modules = contents, modules
        self._schemas: dict[int, Schema] = {}
        self._python: dict[str, Schema] = {}
        self._lock = threading.Lock()  # of all tables: several threads of autograd may run operators
        self.thread = get_ident()  # that steps
        self._numbers = {self.thread: torch._C._autograd._get_sequence_nr()}  # of the next node, by thread

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        if types and not _PLAIN_TYPES.issuperset(types):
            return NotImplemented  # what a subclass does comes here operator by operator
        began = time.perf_counter_ns()
        try:
            schema = self._schemas.get(id(func)) or self._schema(func)
            if schema.is_mark:
                return func(*args, **kwargs)
            before = self._before(schema, args, kwargs)
        except Exception as error:
            self.fail(error)
            return func(*args, **kwargs)
        start = time.perf_counter_ns()
        result = func(*args, **kwargs)
        ended = time.perf_counter_ns()
        try:
            self._after(*before, result, start, ended)
        except Exception as error:
            self.fail(error)
        self.cost_ns += time.perf_counter_ns() - ended + start - began
        return result

    def fail(self, error: Exception) -> None:
        """End by itself: an error here is never the script's."""
        self.is_on = False
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _schema(self, func: Any) -> Schema:
        schema = self._schemas[id(func)] = Schema(func)
        return schema

    def _before(self, schema: Schema, args: Any, kwargs: Any) -> tuple[Schema, Call, list[RawUse]]:
        call = sorted_arguments(schema, args, kwargs)
        if schema.makes_input:
            return schema, call, []
        with self._lock:
            reads = [self._read(tensor) for tensor in call.reads]
            reads += [self.storages.use(tensor) for tensor in call.replaced if _is_part(tensor)]
        return schema, call, reads

    def _read(self, tensor: torch.Tensor) -> RawUse:
        use = self.storages.use(tensor)
        self._look(use, tensor)
        return use

    def _look(self, use: RawUse, tensor: torch.Tensor) -> None:
        value = self.storages.values[use[0]]
        if value.content == PENDING:
            value.content = self._contents.look(tensor, value.base)

    def _after(self, schema: Schema, call: Call, reads: list[RawUse], result: Any, start: int, ended: int) -> None:
        walk = self.stacks.walk(sys._getframe(2))
        thread = get_ident()
        node = torch._C._current_autograd_node()
        results = tensors_in(result)
        with self._lock:
            operator = len(self.operators)
            self._note_maker(thread, operator, call, walk)
            writes = [(self.storages.write(tensor, operator), tensor) for tensor in call.written]
            is_view = False
            for tensor in results:
                if schema.makes_input or schema.is_collective or self.storages.present(tensor) < 0:
                    writes.append((self.storages.write(tensor, operator), tensor))
                else:
                    is_view = True
            for use, tensor in writes:
                if schema.is_collective or _arrives_later(call, tensor):
                    self.storages.values[use[0]].content = UNSEEN
                elif not schema.leaves_contents:
                    self._look(use, tensor)
            self.operators.append(
                RawOperator(
                    step=self.step,
                    schema=schema,
                    start_ns=start,
                    host_ns=ended - start,
                    reads=reads,
                    writes=[use for use, _ in writes],
                    attributes=call.attributes,
                    walk=walk,
                    module=self._modules.current(),
                    node=-1 if node is None or (number := node._sequence_nr()) >= _NO_NUMBER else number,
                    in_backward=torch._C._current_graph_task_id() != -1,
                    has_gradients=torch.is_grad_enabled(),
                    thread=thread,
                    is_view=is_view and not writes,
                    masks=schema.indexes and any(tensor.dtype in _MASKS for tensor in call.reads[1:]),
                )
            )
        if operator + 1 >= MAX_OPERATORS:
            self.is_on = False

    def note_python(self, tensor: torch.Tensor, name: str, only_reads: bool) -> None:
        """Note that Python is about to use a tensor's content without an operator."""
        if not self.is_on or type(tensor) not in _PLAIN_TYPES:
            return
        schema = self._python.get(name)
        if schema is None:
            schema = self._python[name] = Schema(_Method(name))
            schema.reads_host, schema.is_opaque = only_reads, not only_reads
        try:
            now = time.perf_counter_ns()
            with self._lock:
                reads = [self._read(tensor)]
            self._after(schema, Call([tensor], [], [], []), reads, None, now, now)
        except Exception as error:
            self.fail(error)

    def _note_maker(self, thread: int, operator: int, call: Call, walk: Walk) -> None:
        """Note for which operator autograd has made a node since the operator before.

        It makes one ahead of an operator, or of an autograd function; of a write to a view it makes one afterwards.
        """
        number = torch._C._autograd._get_sequence_nr()
        if number > self._numbers.get(thread, number):
            ahead = walk.kinds & FUNCTION or any(tensor.requires_grad for tensor in call.reads)
            self.makers[thread, number - 1] = operator if ahead else operator - 1
        self._numbers[thread] = number


class _Method:
    """A method of tensors that is no operator."""

    def __init__(self, name: str) -> None:
        self.name = f"python::{name}"


def _is_part(tensor: torch.Tensor) -> bool:
    """Return whether a tensor shows a part of its storage only."""
    try:
        return tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    except RuntimeError:
        return False


def _arrives_later(call: Call, tensor: torch.Tensor) -> bool:
    """Return whether a result in the host's memory is a copy that the host does not wait for."""
    return tensor.device.type == "cpu" and any(each.device.type != "cpu" for each in call.reads) and _asynchronous(call)


def _asynchronous(call: Call) -> bool:
    return any(value is True and where in ("non_blocking", 2, 5) for where, value in call.attributes)

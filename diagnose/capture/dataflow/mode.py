"""The dispatch mode under which steps run: it notes each operator below autograd and changes nothing."""

from __future__ import annotations

import sys
import threading
import time
from threading import get_ident
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.capture.dataflow.contents import Contents
from diagnose.capture.dataflow.modules import Modules
from diagnose.capture.dataflow.schemas import PLAIN_TENSORS, Attribute, Call, Schema, sorted_arguments, tensors_in
from diagnose.capture.dataflow.stacks import FUNCTION, NO_BACKWARD, OPTIMIZER, Stacks, Walk
from diagnose.capture.dataflow.storages import PENDING, UNSEEN, RawUse, RawValue, Storages
from diagnose.capture.record.recording import first_line
from diagnose.model.dataflow import ASKS_FOR_GRADIENT, TAKES_OVER

_MASKS = frozenset({torch.bool, torch.uint8})
_now, _row = time.perf_counter_ns, tuple.__new__  # the latter is what the class of a named tuple calls


class Limits(NamedTuple):
    """What a recording may take."""

    operators: int = 200_000  # each takes 1.5 kB of memory
    cost_s: float = 30.0
    looking_s: float = 15.0  # of this cost: from then on no content is looked at


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


class _Begun(NamedTuple):
    """What is known of an operator before it runs."""

    schema: Schema
    call: Call
    reads: list[RawUse]
    walk: Walk
    in_backward: bool


class FlowMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Notes operators while ``is_on``; ``why_ended`` is why it ended by itself."""

    supports_higher_order_operators = True

    def __init__(self, contents: Contents, modules: Modules, limits: Limits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[RawOperator] = []
        self.storages = Storages(lambda: len(self.operators) - 1)
        self.stacks = Stacks()
        self.makers: dict[tuple[int, int], int] = {}  # operators by thread and number of the node made for them
        self.step = 0
        self.cost_ns = 0
        self.why_ended = ""
        self.subclasses: set[type] = set()
        self.is_on = True
        self._contents, self._modules, self._limits = contents, modules, limits
        self._schemas: dict[int, Schema] = {}
        self._others: dict[str, Schema] = {}
        self._lock = threading.RLock()  # of all tables: several threads of autograd may run operators
        self.thread = get_ident()  # that steps
        self._numbers = {self.thread: torch._C._autograd._get_sequence_nr()}  # of the next node, by thread

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing here has to be kept from being compiled: nothing is compiled meanwhile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        if types and not PLAIN_TENSORS.issuperset(types):
            if FakeTensor in types:  # a compiler's, which computes nothing
                return func(*args, **kwargs)
            self.subclasses.update(types)
            return NotImplemented  # what a subclass does comes here operator by operator
        began = _now()
        try:
            schema = self._schemas.get(id(func)) or self._schema(func)
            if schema.is_mark:
                return func(*args, **kwargs)
            begun = self._begun(schema, sorted_arguments(schema, args, kwargs), sys._getframe().f_back)
        except Exception as error:
            self.fail(error)
            return func(*args, **kwargs)
        start = _now()
        result = func(*args, **kwargs)
        ended = _now()
        try:
            self._after(begun, result, start, ended)
        except Exception as error:
            self.fail(error)
        self.cost_ns += _now() - ended + start - began
        return result

    def fail(self, error: Exception) -> None:
        """End by itself: an error here is never the script's."""
        self._end(f"{type(error).__name__}: {first_line(error)}")

    def _end(self, why: str) -> None:
        self.is_on = False
        self.why_ended = self.why_ended or why

    @property
    def is_short_of_time(self) -> bool:
        """Return whether so much time is spent that contents are no longer looked at."""
        return self.cost_ns > self._limits.looking_s * 1e9

    def _schema(self, func: Any) -> Schema:
        schema = self._schemas[id(func)] = Schema(func)
        return schema

    def _begun(self, schema: Schema, call: Call, caller: FrameType | None) -> _Begun:
        backward = torch._C._current_graph_task_id()
        walk = self.stacks.walk(caller, backward)
        in_backward = backward != NO_BACKWARD
        reads: list[RawUse] = []
        if not schema.makes_input:
            storages, values = self.storages, self.storages.values
            with self._lock:
                for tensor in call.reads:
                    use = storages.use(tensor)
                    value = values[use[0]]
                    if value.content == PENDING:
                        self._look(value, tensor, walk, in_backward)
                    reads.append(use)
                if call.replaced:
                    reads.extend([storages.use(tensor) for tensor in call.replaced if _is_part(tensor)])
        return _row(_Begun, (schema, call, reads, walk, in_backward))

    def _look(self, value: RawValue, tensor: torch.Tensor, walk: Walk, in_backward: bool) -> None:
        """Look at a value; an optimizer's own are of no interest, nor is the structure of a gradient."""
        if not walk.kinds & OPTIMIZER and not self.is_short_of_time:
            value.content = self._contents.look(
                tensor, value.base, with_kind=not in_backward, is_given=value.producer < 0
            )

    def _after(self, begun: _Begun, result: Any, start: int, ended: int) -> None:
        schema, call, reads, walk, in_backward = begun
        thread = get_ident()
        node = torch._C._current_autograd_node() if in_backward else None
        with self._lock:
            operator = len(self.operators)
            end = torch._C._autograd._get_sequence_nr()
            if self._numbers.get(thread) != end:
                self._note_makers(thread, operator, end, call, walk)
            writes, is_view = self._written(begun, result, operator)
            row = (
                self.step,
                schema,
                start,
                ended - start,
                reads,
                writes,
                call.attributes,
                walk,
                self._modules.current(thread),
                # Nodes that accumulate gradients have the largest number of 64 bits.
                -1 if node is None or (number := node._sequence_nr()) >= 1 << 62 else number,
                in_backward,
                torch.is_grad_enabled(),
                thread,
                is_view,
                schema.indexes and any(tensor.dtype in _MASKS for tensor in call.reads[1:]),
            )
            self.operators.append(_row(RawOperator, row))
        if operator + 1 >= self._limits.operators:
            self._end(f"{self._limits.operators:,} operators were recorded")
        elif self.cost_ns > self._limits.cost_s * 1e9:
            self._end(f"recording had taken {self._limits.cost_s:g} s")

    def _written(self, begun: _Begun, result: Any, operator: int) -> tuple[list[RawUse], bool]:
        """Return what an operator has written, and whether its result is a view of something else."""
        schema, call, _, walk, in_backward = begun
        storages, values = self.storages, self.storages.values
        is_new = schema.makes_input or schema.is_collective
        written, is_view = call.written, False
        writes = [storages.write(tensor, operator) for tensor in written] if written else []
        for tensor in (result,) if type(result) in PLAIN_TENSORS else tensors_in(result):
            use = storages.write(tensor, operator) if is_new else storages.made(tensor, operator)
            if use is None:
                is_view = True
            else:
                writes.append(use)
                written.append(tensor)
        for use, tensor in zip(writes, written, strict=True):
            value = values[use[0]]
            if schema.is_collective or (schema.may_be_late and _is_late(call, tensor)):
                value.content = UNSEEN
            elif value.content == PENDING and not schema.leaves_contents:
                self._look(value, tensor, walk, in_backward)
        return writes, is_view and not writes

    def note_python(self, tensor: torch.Tensor, name: str, only_reads: bool) -> None:
        """Note that Python is about to use a tensor's content without an operator."""
        schema = self._outside(f"python::{name}")
        schema.reads_host, schema.is_opaque = only_reads, not only_reads
        self._note_outside(schema, Call([tensor], [], [], []))

    def note_launch(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Note that a kernel is about to be launched that may read and write these tensors."""
        schema = self._outside(name)
        schema.leaves_contents = True  # until they are read: it has not run yet
        self._note_outside(schema, Call(tensors, [], tensors, []))

    def note_opaque(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Note that something is about to read these tensors whose operators are not seen."""
        self._note_outside(self._outside(name), Call(tensors, [], [], []))

    def note_asked(self, tensor: object) -> None:
        """Note that Python has asked for the gradient of a tensor that is no parameter: a view of it."""
        if type(tensor) is torch.Tensor and tensor.requires_grad:
            self._note_outside(self._outside(ASKS_FOR_GRADIENT), Call([tensor], [], [], []), tensor)

    def note_array(self, tensor: torch.Tensor) -> None:
        """Note that Python has made a tensor of an array: a view of what comes in."""
        self._note_outside(self._outside(TAKES_OVER), Call([tensor], [], [], []), tensor)

    def _outside(self, name: str) -> Schema:
        """Return the schema of something that is no operator."""
        schema = self._others.get(name)
        if schema is None:
            schema = self._others[name] = Schema(SimpleNamespace(name=name))
        return schema

    def _note_outside(self, schema: Schema, call: Call, result: torch.Tensor | None = None) -> None:
        if not self.is_on or any(type(tensor) not in PLAIN_TENSORS for tensor in call.reads):
            return
        try:
            begun = self._begun(schema, call, sys._getframe(3))
            now = time.perf_counter_ns()
            self._after(begun, result, now, now)
        except Exception as error:
            self.fail(error)

    def _note_makers(self, thread: int, operator: int, end: int, call: Call, walk: Walk) -> None:
        """Note for which operators autograd has made nodes since the operator before; ``end`` is the next one's number.

        It makes one ahead of an operator, or of an autograd function; of a write to a view it makes more afterwards.
        """
        begin = self._numbers.get(thread, end)
        for number in range(begin, end):
            self.makers[thread, number] = operator - 1
        if begin < end and (walk.kinds & FUNCTION or any(tensor.requires_grad for tensor in call.reads)):
            self.makers[thread, end - 1] = operator
        self._numbers[thread] = end


def accept_higher_order() -> None:
    """Let operators of higher order run under the mode in releases where each needs a rule for that."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in torch._ops._higher_order_ops.values():
        if FlowMode not in operator.python_key_table:
            operator.py_impl(FlowMode)(
                lambda mode, *args, _operator=operator, **kwargs: mode.__torch_dispatch__(_operator, (), args, kwargs)
            )


def _is_part(tensor: torch.Tensor) -> bool:
    """Return whether a tensor shows a part of its storage only."""
    try:
        return tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    except RuntimeError:
        return False


def _is_late(call: Call, tensor: torch.Tensor) -> bool:
    """Return whether a result in the host's memory is a copy that the host does not wait for."""
    is_waited_for = not any(value is True and where in ("non_blocking", 2) for where, value in call.attributes)
    return tensor.device.type == "cpu" and not is_waited_for and any(each.device.type != "cpu" for each in call.reads)

"""Turns what was noted while the steps ran into the table that a capture holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from diagnose.capture.dataflow.calls import attributes_text
from diagnose.capture.dataflow.contents import UNKNOWN, Content
from diagnose.capture.dataflow.mode import FlowMode, RawOperator
from diagnose.capture.dataflow.outliving import needed_values
from diagnose.capture.dataflow.roles import Roles
from diagnose.capture.dataflow.schemas import MAKES_INPUT
from diagnose.capture.dataflow.stacks import FUNCTION, LOADING, OPTIMIZER, RECOMPUTING, STARTING
from diagnose.capture.dataflow.storages import RawUse, RawValue
from diagnose.capture.dataflow.unread import unread_values
from diagnose.model.dataflow import Dataflow, Frame, Operator, Phase, Role, Use, Value

__all__ = ["Recorded", "dataflow"]


class Recorded(NamedTuple):
    """What was noted while the steps ran."""

    mode: FlowMode
    roles: Roles
    contents: Sequence[Content]
    module_name: Callable[[int], str]


def dataflow(recorded: Recorded, num_steps: int, rank: int, left_out: Sequence[str]) -> Dataflow:
    """Return the table of the whole steps, once recording has ended."""
    mode, roles, contents, module_name = recorded
    raw = [operator for operator in mode.operators if operator.step < num_steps]
    raw_values = [value for value in mode.storages.values if value.step < num_steps]
    operators = tuple(_operators(raw, mode, module_name))
    found_roles = _roles(raw_values, operators, roles)
    kept = _kept(operators, raw_values, found_roles)
    last = {value.storage: number for number, value in enumerate(raw_values)}
    dies = [value.dies if value.dies < len(operators) else -1 for value in raw_values]
    alive = frozenset(number for number in last.values() if dies[number] < 0)
    values = tuple(
        _value(value, contents, found_roles[number], dies=dies[number], is_kept=number in kept)
        for number, value in enumerate(raw_values)
    )
    return Dataflow(
        operators=operators,
        values=tuple(
            value._replace(held_by=_made_at(value, operators)) if number in alive else value
            for number, value in enumerate(values)
        ),
        num_steps=num_steps,
        rank=rank,
        left_out=tuple(left_out),
        cost_ns=mode.cost_ns,
        roots=needed_values(operators, values, alive) - unread_values(operators, values, alive),
        torch_version=torch.__version__,
    )


def _operators(raw: Sequence[RawOperator], mode: FlowMode, module_name: Callable[[int], str]) -> Iterator[Operator]:
    numbers = {operator: number for (_, number), operator in mode.makers.items()}
    start = raw[0].start_ns if raw else 0
    made: list[Operator] = []
    for i, each in enumerate(raw):
        forward = _forward(each, mode)
        source = made[forward] if 0 <= forward < i else None
        stack = mode.stacks.frames(each.walk.key)
        module = module_name(each.module)
        if each.in_backward and not stack:
            stack = source.stack if source is not None else mode.stacks.frames(each.walk.caller)
        if source is not None and not module:
            module = source.module
        schema = each.schema
        draws = schema.draws and not _is_without_dropout(each)
        made.append(
            Operator(
                step=each.step,
                name=schema.name,
                phase=_phase(each),
                start_ns=each.start_ns - start,
                host_ns=each.host_ns,
                reads=_uses(each.reads),
                writes=_uses(each.writes),
                stack=stack,
                module=module,
                sequence_nr=each.node if each.node >= 0 else numbers.get(i, -1),
                thread=each.thread,
                attributes=attributes_text(schema, each.attributes),
                is_view=each.is_view,
                draws=draws,
                reads_host=schema.reads_host or each.masks,
                is_collective=schema.is_collective,
                is_opaque=schema.is_opaque,
                forward=forward,
            )
        )
    return iter(made)


def _forward(operator: RawOperator, mode: FlowMode) -> int:
    """Return the forward operator of one in a backward pass; what a checkpoint computes again has none."""
    if operator.node < 0 or operator.walk.kinds & RECOMPUTING:
        return -1
    threads = (operator.thread, mode.thread)
    return next((mode.makers[t, operator.node] for t in threads if (t, operator.node) in mode.makers), -1)


def _is_without_dropout(operator: RawOperator) -> bool:
    position = operator.schema.dropout
    if position < 0:
        return False
    given = next((value for where, value in operator.attributes if where in (position, "dropout_p")), 0.0)
    return given == 0.0


def _phase(operator: RawOperator) -> Phase:
    kinds = operator.walk.kinds
    if kinds & OPTIMIZER:
        return "optimizer"
    if operator.in_backward or kinds & STARTING:
        return "backward"
    if kinds & LOADING or not (operator.has_gradients or operator.module or kinds & FUNCTION):
        return "other"
    return "forward"


def _uses(raw: Sequence[RawUse]) -> tuple[Use, ...]:
    return tuple(
        [Use(value, tuple(shape), tuple(stride), at, _dtype(dtype)) for value, shape, stride, at, dtype in raw]
    )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _value(raw: RawValue, contents: Sequence[Content], role: tuple[Role, str], *, dies: int, is_kept: bool) -> Value:
    content = contents[raw.content] if raw.content >= 0 else UNKNOWN
    return Value(
        storage=raw.storage,
        version=raw.version,
        dtype=_dtype(raw.base.dtype),
        shape=raw.base.seen,
        device=str(raw.base.device),
        num_bytes=raw.base.num_bytes,
        producer=raw.producer,
        role=role[0],
        name=role[1],
        **content._asdict(),
        is_kept=is_kept,
        dies=dies,
    )


def _made_at(value: Value, operators: Sequence[Operator]) -> tuple[Frame, ...]:
    return operators[value.producer].stack if value.producer >= 0 else ()


def _roles(values: Sequence[RawValue], operators: Sequence[Operator], roles: Roles) -> list[tuple[Role, str]]:
    """Return each value's role and name."""
    steps: dict[int, set[int]] = {}  # in which a storage is used
    for operator in operators:
        for use in (*operator.reads, *operator.writes):
            steps.setdefault(values[use.value].storage, set()).add(operator.step)
    versions = Counter(value.storage for value in values)
    first = {value.storage: value for value in reversed(values)}
    found: dict[int, tuple[Role, str]] = {}
    for storage, value in first.items():
        owner = roles.of_storage.get(storage)
        outlives = len(steps.get(storage, ())) > 1
        if owner is not None:
            found[storage] = owner.role, owner.name
        elif value.producer < 0 or operators[value.producer].name == MAKES_INPUT:
            role: Role = "input" if not outlives else "constant" if versions[storage] == 1 else "state"
            found[storage] = role, ""
        else:
            found[storage] = ("state" if outlives else ""), ""
    return [found[value.storage] for value in values]


def _kept(
    operators: Sequence[Operator], values: Sequence[RawValue], roles: Sequence[tuple[Role, str]]
) -> frozenset[int]:
    """Return the values that autograd has kept: made before a backward pass and read in it."""
    owned: tuple[Role, ...] = ("parameter", "gradient", "optimizer state")
    return frozenset(
        use.value
        for operator in operators
        if operator.phase == "backward"
        for use in operator.reads
        if roles[use.value][0] not in owned
        and (values[use.value].producer < 0 or operators[values[use.value].producer].phase in ("forward", "other"))
    )

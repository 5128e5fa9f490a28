"""Turns what was noted while the steps ran into the table that a capture holds."""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from diagnose.capture.dataflow.contents import UNKNOWN, Content
from diagnose.capture.dataflow.mode import FlowMode, RawOperator
from diagnose.capture.dataflow.modules import Roles
from diagnose.capture.dataflow.schemas import MAKES_INPUT, attributes_text
from diagnose.capture.dataflow.stacks import FUNCTION, LOADING, OPTIMIZER, RECOMPUTING, STARTING
from diagnose.capture.dataflow.storages import RawUse, RawValue
from diagnose.capture.record.sampler import is_users_file
from diagnose.capture.record.source_lines import tree_of
from diagnose.model.dataflow import Dataflow, Operator, Phase, Role, Use, Value

# Which attributes of the script's objects no line of its sources reads, but to make their own next value.
#
# A running statistic is needed if it is read at last. Two steps do not show whether it is, but sources do: a name that
# stands in one statement only is read by that one. Where names are made of text, nothing is known.

# These get at attributes by other means than their names, or write whole objects.
_BY_TEXT = frozenset(
    {"__dict__", "vars", "locals", "getattr", "attrgetter", "asdict", "astuple", "pickle", "save", "dump", "dumps"}
)


def unread_values(operators: Sequence[Operator], values: Sequence[Value], alive: Iterable[int]) -> frozenset[int]:
    """Return those of the values alive at the end that a statement puts into an attribute which nothing else reads."""
    made: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number in alive:
        value = values[number]
        stack = operators[value.producer].stack if value.producer >= 0 else ()
        if stack and value.role in ("", "state"):
            made[stack[0].file, stack[0].line].append(number)
    attributes = {place: name for place in made if (name := _attribute(*place))}
    if not attributes:
        return frozenset()
    loaded = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    users = {file for file in loaded if file.endswith(".py") and is_users_file(file) and Path(file).is_file()}
    trees = {file: tree_of(file) for file in users.union(file for file, _ in made)}
    return frozenset(
        number
        for (file, line), name in attributes.items()
        if not any(_reads(tree, name, line * (file == each)) for each, tree in trees.items())
        for number in made[file, line]
    )


def _attribute(file: str, line: int) -> str:
    """Return the attribute that the statement which begins at a line sets, or changes in place; "" if it is none."""
    for node in ast.walk(tree_of(file) or ast.Module([], [])):
        if isinstance(node, ast.stmt) and node.lineno == line:
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=name)]) | ast.AugAssign(target=ast.Attribute(attr=name)):
                    return name
                case ast.Expr(ast.Call(ast.Attribute(ast.Attribute(attr=name), method))) if method.endswith("_"):
                    return name
    return ""


def _reads(tree: ast.Module | None, name: str, line: int) -> bool:
    """Return whether a file may read an attribute, or hold its name, outside of the statement at a line."""
    if tree is None:
        return True
    own = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno == line]
    mine = {id(node) for statement in own for node in ast.walk(statement)}
    return any(_may_read(node, name) for node in ast.walk(tree) if id(node) not in mine)


def _may_read(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _BY_TEXT or (node.attr == name and isinstance(node.ctx, ast.Load))
    if isinstance(node, ast.AnnAssign):  # a field of a data class, which prints itself
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Name):
        return node.id in _BY_TEXT
    return isinstance(node, ast.Constant) and node.value == name


# Which values are needed after the steps, and which a variable merely holds until the next step replaces them.


def needed_values(operators: Sequence[Operator], values: Sequence[Value], alive: frozenset[int]) -> frozenset[int]:
    """Return those of the values alive at the end that may be needed.

    The last step ends with the loss, the last batch and the gradients still there. What the same operator made in the
    step before shows whether they are read in the next step: if it was replaced without being read, they are not.
    """
    last = operators[-1].step if operators else 0
    read = {use.value for operator in operators if operator.step == last for use in operator.reads}
    latest = {value.storage: number for number, value in enumerate(values)}
    begin = next((i for i, operator in enumerate(operators) if operator.step == last), 0)
    leftovers = set[tuple[object, ...]]()
    for key, number in _made(operators, last - 1):
        value = values[number]
        is_gone = value.dies >= begin or latest[value.storage] != number
        if is_gone and number not in read:
            leftovers.add(key)
    of_last = {number: key for key, number in _made(operators, last)}
    return frozenset(number for number in alive if of_last.get(number) not in leftovers)


def _made(operators: Sequence[Operator], step: int) -> Iterator[tuple[tuple[object, ...], int]]:
    """Yield the values that a step's operators write, each with what identifies it in every step."""
    count = Counter[tuple[object, ...]]()
    for operator in operators:
        if operator.step == step:
            key = operator.name, operator.phase, operator.stack, operator.module
            count[key] += 1
            for i, use in enumerate(operator.writes):
                yield (*key, count[key], i), use.value


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
        values=values,
        num_steps=num_steps,
        rank=rank,
        left_out=tuple(left_out),
        cost_ns=mode.cost_ns,
        roots=needed_values(operators, values, alive) - unread_values(operators, values, alive),
        held=roles.held,
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
        dropout = next((value for where, value in each.attributes if where in (schema.dropout, "dropout_p")), 0.0)
        draws = schema.draws and (schema.dropout < 0 or dropout != 0.0)
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

"""The data flow of a step as the JSON of ``rank0.dataflow.json.gz``: a column for each field, tables for what repeats.

Texts, shapes, stacks and views stand once each; columns hold their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta

from diagnose.errors import InputError
from diagnose.model.dataflow import Dataflow, Frame, Operator, Phase, Role, Use, Value
from diagnose.model.records import MAX_INT, Count, decode

DATAFLOW_SCHEMA = 1

_Cell: TypeAlias = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | float | list[Count]
_Columns: TypeAlias = dict[str, list[_Cell]]
_Row = TypeVar("_Row", Operator, Value)


class _Rows(msgspec.Struct, gc=False):
    """The content of the file."""

    num_steps: Annotated[int, Meta(ge=0, le=1_000)]
    texts: list[str]
    shapes: list[tuple[Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)], ...]]
    frames: list[tuple[Count, Annotated[int, Meta(ge=-1, le=2**31 - 1)], Count]]  # file, line, function
    stacks: list[tuple[Count, ...]]
    views: list[
        tuple[Count, Count, Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)], Count]
    ]  # shape, stride, offset, dtype
    operators: _Columns
    values: _Columns
    rank: Count = 0
    left_out: tuple[str, ...] = ()
    cost_ns: Count = 0
    roots: list[Count] = []
    held: list[Count] = []


class _Table:
    """Different things in the order in which they were first met."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def rows(self) -> list[Any]:
        return list(self._numbers)


def dataflow_rows(flow: Dataflow) -> dict[str, object]:
    """Return what the file holds."""
    texts, shapes, frames, stacks, views = (_Table() for _ in range(5))

    def stack(found: Iterable[Frame]) -> int:
        numbers = [frames.number((texts.number(f.file), f.line, texts.number(f.function))) for f in found]
        return stacks.number(tuple(numbers))

    def uses(found: Iterable[Use]) -> list[int]:
        cells = []
        for use in found:
            view = shapes.number(use.shape), shapes.number(use.stride), use.offset, texts.number(use.dtype)
            cells += [use.value, views.number(view)]
        return cells

    write: dict[str, Callable[[Any], object]] = {
        "int": int,
        "bool": int,
        "float": lambda share: round(share, 6),
        "tuple[int, ...]": shapes.number,
        "tuple[Frame, ...]": stack,
        "tuple[Use, ...]": uses,
    }

    def columns(kind: Any, rows: Sequence[Any]) -> dict[str, list[object]]:
        cells = {name: write.get(type_name, texts.number) for name, type_name in _types(kind).items()}
        return {name: [cell(getattr(row, name)) for row in rows] for name, cell in cells.items()}

    operators, values = columns(Operator, flow.operators), columns(Value, flow.values)
    return {
        "schema_version": DATAFLOW_SCHEMA,
        "rank": flow.rank,
        "num_steps": flow.num_steps,
        "left_out": flow.left_out,
        "cost_ns": flow.cost_ns,
        "roots": sorted(flow.roots),
        "held": sorted(flow.held),
        "texts": texts.rows,
        "shapes": shapes.rows,
        "frames": frames.rows,
        "stacks": stacks.rows,
        "views": views.rows,
        "operators": operators,
        "values": values,
    }


def dataflow_from_json(text: bytes, *, source: str, remedy: str) -> Dataflow:
    """Read the file's text; unknown fields are ignored, missing ones default.

    Raises:
        InputError: it is no data flow of a known schema, or its columns do not fit together.
    """
    version = decode(text, _Version, source=source, remedy=remedy).schema_version
    if version > DATAFLOW_SCHEMA:
        raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
    rows = decode(text, _Rows, source=source, remedy=remedy)
    try:
        return _dataflow(rows)
    except (IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"The columns of {source} do not fit together. {remedy}") from None


class _Version(msgspec.Struct):
    schema_version: Annotated[int, Meta(ge=1, le=MAX_INT)]


def _dataflow(rows: _Rows) -> Dataflow:
    texts, shapes = rows.texts, rows.shapes
    frames = [Frame(texts[file], line, texts[function]) for file, line, function in rows.frames]
    stacks = [tuple([frames[i] for i in stack]) for stack in rows.stacks]
    views = [(shapes[shape], shapes[stride], offset, texts[dtype]) for shape, stride, offset, dtype in rows.views]
    read: dict[str, Callable[[Any], object]] = {
        "int": _integer,
        "bool": lambda cell: (False, True)[_number(cell, 2)],
        "float": float,
        "tuple[int, ...]": lambda cell: shapes[_number(cell, len(shapes))],
        "tuple[Frame, ...]": lambda cell: stacks[_number(cell, len(stacks))],
        "tuple[Use, ...]": lambda cell: tuple(
            [Use(value, *views[view]) for value, view in zip(cell[::2], cell[1::2], strict=True)]
        ),
        "Phase": _one_of(get_args(Phase), texts),
        "Role": _one_of(get_args(Role), texts),
    }

    def cell(type_name: str) -> Callable[[Any], object]:
        return read.get(type_name, lambda cell: texts[_number(cell, len(texts))])

    operators = _table(Operator, rows.operators, cell)
    values = _table(Value, rows.values, cell)
    _check(operators, values, rows)
    return Dataflow(
        operators=operators,
        values=values,
        num_steps=rows.num_steps,
        rank=rows.rank,
        left_out=rows.left_out,
        cost_ns=rows.cost_ns,
        roots=frozenset(rows.roots),
        held=frozenset(rows.held),
    )


def _table(kind: type[_Row], columns: Mapping[str, list[Any]], cell: Callable[[Any], Any]) -> tuple[_Row, ...]:
    """Return a row of a type for each row of the columns."""
    read: dict[str, list[object]] = {}
    for name, type_name in _types(kind).items():
        if name in columns or name not in kind._field_defaults:
            of_field = cell(type_name)
            read[name] = [of_field(each) for each in columns[name]]
    names = list(read)
    return tuple([kind(**dict(zip(names, row, strict=True))) for row in zip(*read.values(), strict=True)])


def _types(kind: type[tuple[Any, ...]]) -> dict[str, str]:
    """Return the fields of a named tuple, and how each is annotated."""
    return {name: str(getattr(each, "__forward_arg__", each)) for name, each in kind.__annotations__.items()}


def _integer(cell: object) -> int:
    if not isinstance(cell, int):
        raise TypeError
    return cell


def _number(cell: object, num: int) -> int:
    """Return the number of a row of a table."""
    if not 0 <= _integer(cell) < num:
        raise IndexError
    return _integer(cell)


def _one_of(choices: Sequence[str], texts: Sequence[str]) -> Callable[[Any], str]:
    def read(cell: object) -> str:
        text = texts[_number(cell, len(texts))]
        if text not in choices:
            raise ValueError
        return text

    return read


def _check(operators: Sequence[Operator], values: Sequence[Value], rows: _Rows) -> None:
    """Look whether every number of an operator or a value is one.

    Raises:
        IndexError: there is none of that number.
    """
    for operator in operators:
        for use in (*operator.reads, *operator.writes):
            _number(use.value, len(values))
        _number(operator.forward + 1, len(operators) + 1)
        _number(operator.step, rows.num_steps)
    for value in values:
        _number(value.producer + 1, len(operators) + 1)
        _number(value.dies + 1, len(operators) + 1)
    for root in rows.roots:
        _number(root, len(values))

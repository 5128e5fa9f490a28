"""A product and what combines rows, written in the other order with the user's own names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from diagnose.analyzers.common.idioms.source import Source, last_name, names_in, statement_at
from diagnose.analyzers.common.rewrite import Edits
from diagnose.dataflow.products import ProductOrder
from diagnose.model.assignments import assigned, name_of
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import OwnSource, span, spliced

_OF_ROWS = frozenset({"mm", "bmm", "matmul", "spmm"})  # torch.…: of two matrices


class _Product(NamedTuple):
    """A product in a statement: its rows, and what stands before and after them in the text of it."""

    node: ast.expr
    rows: ast.expr
    start: str
    end: str

    def of(self, rows: str) -> str:
        """Return the text of the product of other rows."""
        return f"{self.start}{rows}{self.end}"


def reordered(source: OwnSource, one: ProductOrder) -> Edits:
    """Return the statements with the product first, where the source shows that only the order changes."""
    place = one.product_stack[0] if one.product_stack else Frame("", 0, "")
    known = statement_at(source, place)
    if known is None or one.has_bias or not one.is_first or not one.is_always:
        return ()
    lines = {_line_in(stack, one.product_stack) for stack in one.row_stacks}
    first = lines.pop()
    if lines or first is None:
        return ()
    products = [made for node in known.own() if isinstance(node, ast.expr) and (made := _product(known, node, one))]
    found = [(each, *rows) for each in products if (rows := _rows(source, known, each, one, first)) is not None]
    if len(found) != 1:
        return ()
    ((product, where, data),) = found
    text = where.now({}, data)
    is_whole = product.start or isinstance(data, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    now = product.of(text if is_whole else f"({text})")
    if where is not known:
        return (where.edited({data: now}), known.edited({product.node: known.now({}, product.rows)}))
    start, carrier = span(known.text, product.rows)[0], known.now({}, product.rows)
    a, b = (each - start for each in span(known.text, data))
    is_call = isinstance(product.rows, ast.Call)
    return (known.edited({product.node: spliced(carrier, [(a, b, now if is_call else f"({now})")])}),)


def _rows(
    source: OwnSource, known: Source, product: _Product, one: ProductOrder, line: Frame
) -> tuple[Source, ast.expr] | None:
    """Return the rows of a product before they are combined, and the statement that has them."""
    carrier, where = product.rows, known
    if isinstance(carrier, ast.Name):
        made = statement_at(source, line)
        targets = [name_of(each) for each in getattr(made.statement, "targets", [])] if made is not None else []
        uses = [node for node in ast.walk(known.around) if isinstance(node, ast.Name) and node.id == carrier.id]
        if made is None or targets != [carrier.id] or len(uses) != 2 or _changed_between(known, made, product):
            return None
        # One tree for both statements.
        statement = next(node for node in ast.walk(known.around) if ast.dump(node) == ast.dump(made.statement))
        assert isinstance(statement, ast.Assign)
        carrier, where = statement.value, replace(known, statement=statement)
    elif line != one.product_stack[0]:
        return None
    data = _data(source, carrier, one, line)
    return (where, data) if data is not None else None


def _line_in(stack: tuple[Frame, ...], product: tuple[Frame, ...]) -> Frame | None:
    """Return the line of the product's function that runs an operator."""
    at = len(stack) - len(product)
    return stack[at] if at >= 0 and stack[at + 1 :] == product[1:] and stack[at].file == product[0].file else None


def _product(known: Source, node: ast.expr, one: ProductOrder) -> _Product | None:
    match node:
        case ast.BinOp(left=rows, op=ast.MatMult(), right=weights):
            return _Product(node, rows, "", f" @ {known.now({}, weights)}")
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=[rows, weights], keywords=[]) if (
            name in _OF_ROWS
        ):
            return _Product(node, rows, f"torch.{name}(", f", {known.now({}, weights)})")
        case ast.Call(func=ast.Attribute() as called, args=[rows], keywords=[]) if (
            one.module and f".{one.module}".endswith(f".{ast.unparse(called).removeprefix('self.')}")
        ):
            return _Product(node, rows, f"{ast.unparse(called)}(", ")")
    return None


def _changed_between(known: Source, where: Source, product: _Product) -> bool:
    """Return whether a name of the product gets another value after the rows are combined."""
    names = {*names_in(product.node)} - {*names_in(product.rows)}
    between = range(where.line(where.statement), known.line(known.statement))
    stored = {name_of(each.target) for node in ast.walk(known.around) for each in assigned(node)
              if isinstance(node, ast.stmt) and known.line(node) in between}  # fmt: skip
    return bool(names & stored)


def _data(source: OwnSource, carrier: ast.expr, one: ProductOrder, line: Frame) -> ast.expr | None:
    """Return the part of an expression that is the rows before they are combined."""
    match carrier:
        case ast.BinOp(left=_, op=ast.MatMult(), right=rows) if len(one.row_stacks) == 1:
            return rows
        case ast.Call(func=ast.Attribute() as called, args=[_, rows], keywords=[]) if (
            ast.unparse(called).startswith("torch.") and called.attr in _OF_ROWS and len(one.row_stacks) == 1
        ):
            return rows
        case ast.Call(func=called, args=args, keywords=keywords):
            names = _parameter(source, one.row_stacks[0], line)
            if names is None or any(isinstance(each, ast.Starred) for each in args):
                return None
            given: Mapping[str, ast.expr] = dict(zip(names[1][isinstance(called, ast.Attribute) :], args, strict=False))
            given = {**given, **{word.arg: word.value for word in keywords if word.arg}}
            return given.get(names[0])
    return None


def _parameter(source: OwnSource, stack: tuple[Frame, ...], line: Frame) -> tuple[str, list[str]] | None:
    """Return the parameter of a function that its first operator combines, and all of them.

    The function has to take rows of any width: it reads no number and nothing of its object but methods.
    """
    inner = stack[stack.index(line) - 1]
    known = statement_at(source, inner)
    if known is None or not isinstance(known.around, ast.FunctionDef) or inner != stack[0]:
        return None
    called = {id(node.func) for node in ast.walk(known.around) if isinstance(node, ast.Call)}
    for node in ast.walk(known.around):
        is_number = isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) > 1
        is_own = isinstance(node, ast.Attribute) and name_of(node).startswith("self.") and id(node) not in called
        if is_number or is_own:
            return None
    parameters = [each.arg for each in known.around.args.args]
    rows = set[str]()
    for node in known.own():
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=index) if not isinstance(index, ast.Tuple | ast.Slice):
                rows.add(name)
            case ast.BinOp(op=ast.MatMult(), right=ast.Name(id=name)):
                rows.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="index_select")):
                rows.add(name)
            case ast.Call(args=[_, ast.Name(id=name)]) if last_name(node.func) in _OF_ROWS:
                rows.add(name)
    mine = [name for name in parameters if name in rows and name not in known.local]
    return (mine[0], parameters) if len(mine) == 1 else None

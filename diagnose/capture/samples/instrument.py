"""The user's functions with each call, subscript and binary operation handed to a recorder, as code objects."""

from __future__ import annotations

import ast
import gc
import linecache
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import NamedTuple

from diagnose.capture.samples.single_use import Place, place_of, used_once

__all__ = ["BEGIN", "CALL", "GET", "OPERATION", "SLICE", "Expression", "instrument"]

BEGIN, CALL, OPERATION = "__diagnose_begin__", "__diagnose_call__", "__diagnose_operation__"
GET, SLICE = "__diagnose_get__", "__diagnose_slice__"
# What reads the frame that calls it: one of the recorder's in between would change its result.
_OF_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})
_OF_MODULES = frozenset({"sys._getframe", "inspect.currentframe", "inspect.stack", "inspect.trace"})


class Expression(NamedTuple):
    """A place in the source that computes a value."""

    file: str
    line: int
    function: str
    text: str
    has_one_use: bool = False


def instrument(codes: Iterable[CodeType]) -> list[Expression]:
    """Give the functions of these code objects the code that reports to the recorder; return what is reported, by id.

    A function whose code is not that of its file now, or that a tool has rewritten, is left as it is.
    """
    expressions: list[Expression] = []
    new: dict[CodeType, CodeType] = {}
    wanted = set(codes)
    for file in sorted({code.co_filename for code in wanted}):
        new |= _recorded(file, wanted, expressions)
    gc.unfreeze()  # what is frozen is not among its objects
    for function in [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__ in new]:
        function.__code__ = new[function.__code__]
    return expressions


def _recorded(file: str, wanted: set[CodeType], expressions: list[Expression]) -> dict[CodeType, CodeType]:
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(text)
        plain = compile(tree, file, "exec", dont_inherit=True)
        changed = _Recorded(file, expressions, used_once(tree)).visit(ast.parse(text))
        recorded = compile(ast.fix_missing_locations(changed), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    pairs = {(p.co_name, p.co_firstlineno, p.co_code): r for p, r in _pairs(plain, recorded)}
    found = {code: pairs.get((code.co_name, code.co_firstlineno, code.co_code)) for code in wanted}
    return {code: each for code, each in found.items() if each is not None and each.co_freevars == code.co_freevars}


def _pairs(plain: CodeType, recorded: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    yield plain, recorded
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (plain, recorded)]
    names = [[(each.co_name, each.co_firstlineno) for each in codes] for codes in inner]
    if names[0] == names[1]:
        for one, other in zip(*inner, strict=True):
            yield from _pairs(one, other)


class _Recorded(ast.NodeTransformer):
    """Replaces expressions within functions; the order of evaluation stays the same."""

    def __init__(self, file: str, expressions: list[Expression], single: Collection[Place]) -> None:
        self._file, self._expressions, self._single = file, expressions, single
        self._functions: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._functions or _reads_frames(node.func):
            return self.generic_visit(node)
        number = self._number(node)
        self.generic_visit(node)
        call = ast.Call(ast.Name(CALL, ast.Load()), [number, node.func, *node.args], node.keywords)
        return ast.copy_location(call, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if not self._functions or _is_constant(node):
            return node
        number = self._number(node)
        self.generic_visit(node)
        operation = ast.Constant(type(node.op).__name__)
        call = ast.Call(ast.Name(OPERATION, ast.Load()), [number, operation, node.left, node.right], [])
        return ast.copy_location(call, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        at = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        known = isinstance(node.ctx, ast.Load) and not any(isinstance(each, ast.Starred) for each in at)
        if not self._functions or not known:
            return self.generic_visit(node)
        number = self._number(node)
        self.generic_visit(node)
        index = (
            ast.Tuple([_index(each) for each in node.slice.elts], ast.Load())
            if isinstance(node.slice, ast.Tuple)
            else _index(node.slice)
        )
        call = ast.Call(ast.Name(GET, ast.Load()), [number, node.value, index], [])
        return ast.copy_location(call, node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._functions.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        self._functions.pop()
        return node

    def _number(self, node: ast.expr) -> ast.Call:
        place = Expression(
            self._file, node.lineno, self._functions[-1], ast.unparse(node), place_of(node) in self._single
        )
        self._expressions.append(place)
        return ast.Call(ast.Name(BEGIN, ast.Load()), [ast.Constant(len(self._expressions) - 1)], [])


def _reads_frames(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _OF_FRAMES or any(name.endswith(f".{function.id}") for name in _OF_MODULES)
    return ast.unparse(function) in _OF_MODULES


def _index(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Slice):
        return node
    parts = [each if each is not None else ast.Constant(None) for each in (node.lower, node.upper, node.step)]
    return ast.Call(ast.Name(SLICE, ast.Load()), parts, [])


def _is_constant(node: ast.expr) -> bool:
    return all(
        isinstance(each, ast.BinOp | ast.UnaryOp | ast.Constant | ast.operator | ast.unaryop) for each in ast.walk(node)
    )

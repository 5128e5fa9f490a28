"""The user's functions with each call, subscript and binary operation handed to a recorder, as code objects."""

from __future__ import annotations

import ast
import gc
import linecache
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import NamedTuple

_SHAPES = frozenset({"shape", "ndim", "dtype", "size", "device"})

BEGIN, CALL, OPERATION = "__diagnose_begin__", "__diagnose_call__", "__diagnose_operation__"
GET, SLICE, COMPARE = "__diagnose_get__", "__diagnose_slice__", "__diagnose_compare__"
# Around values that go to where the recorder does not see them: into a comparison, a list, an attribute, a loop.
WHOLE, RETURN = "__diagnose_whole__", "__diagnose_return__"
# What reads the frame that calls it: one of the recorder's in between would change its result.
_OF_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})
_OF_MODULES = frozenset({"sys._getframe", "inspect.currentframe", "inspect.stack", "inspect.trace"})


class Expression(NamedTuple):
    """A place in the source that computes a value."""

    file: str
    line: int
    function: str
    text: str


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
        changed = _Recorded(file, expressions).visit(tree)
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

    def __init__(self, file: str, expressions: list[Expression]) -> None:
        self._file, self._expressions = file, expressions
        self._functions: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._functions.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        self._functions.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = self._named(node.value, node.targets)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self._named(node.value, [node.target]) if node.value is not None else None
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        node.target, node.value = self.visit(node.target), self.visit(node.value)
        if self._functions and isinstance(node.target, ast.Name):
            node.value = _around(WHOLE, node.value, ast.Name(node.target.id, ast.Load()))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and self._functions:
            node.value = _around(RETURN, self._passed(node.value))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_read = bool(self._functions) and isinstance(node.ctx, ast.Load)
        return _around(WHOLE, node) if is_read and node.id not in ("self", "cls") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.value = self._passed(node.value) if node.attr in _SHAPES else self.visit(node.value)
        return node

    def _named(self, value: ast.expr, targets: list[ast.expr]) -> ast.expr:
        """Return what is assigned; names are followed, attributes and items are not."""
        are_names = all(isinstance(part, ast.Name) for each in targets for part in getattr(each, "elts", [each]))
        return self._passed(value) if are_names else self.visit(value)

    def _passed(self, node: ast.expr) -> ast.expr:
        """Return an expression whose value the recorder sees go on."""
        if isinstance(node, ast.Tuple):
            node.elts = [self._passed(each) for each in node.elts]
            return node
        if isinstance(node, ast.Name):
            return node
        new: ast.expr = self.visit(node)
        return new.args[0] if isinstance(new, ast.Call) and getattr(new.func, "id", "") == WHOLE else new

    def _function(self, node: ast.expr) -> ast.expr:
        """Return what is called: a method goes on with what it belongs to."""
        if isinstance(node, ast.Attribute):
            node.value = self._passed(node.value)
            return node
        return self._passed(node)

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._functions or _reads_frames(node.func):
            node.args, node.keywords = [self.visit(each) for each in node.args], [self.visit(k) for k in node.keywords]
            return node

        def parts() -> list[ast.expr]:
            for each in node.keywords:
                each.value = self._passed(each.value)
            return [self._function(node.func), *map(self._passed, node.args)]

        return self._reported(node, CALL, parts, node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        is_constant = all(
            isinstance(each, ast.BinOp | ast.UnaryOp | ast.Constant | ast.operator | ast.unaryop)
            for each in ast.walk(node)
        )
        if is_constant or not self._functions:
            return self.generic_visit(node)
        operation = ast.Constant(type(node.op).__name__)
        return self._reported(node, OPERATION, lambda: [operation, self._passed(node.left), self._passed(node.right)])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if not self._functions or len(node.ops) > 1 or isinstance(node.ops[0], ast.Is | ast.IsNot):
            return self.generic_visit(node)
        how, right = ast.Constant(type(node.ops[0]).__name__), node.comparators[0]
        return self._reported(node, COMPARE, lambda: [how, self._passed(node.left), self._passed(right)])

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_spread = any(isinstance(each, ast.Starred) for each in getattr(node.slice, "elts", ()))
        if not self._functions or is_spread or not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)

        def index() -> ast.expr:
            if isinstance(node.slice, ast.Tuple):
                return ast.Tuple([_index(self._sliced(each)) for each in node.slice.elts], ast.Load())
            return _index(self._sliced(node.slice))

        return self._reported(node, GET, lambda: [self._passed(node.value), index()])

    def _sliced(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Slice):
            return self._passed(node)
        node.lower, node.upper, node.step = (
            self._passed(each) if each is not None else None for each in (node.lower, node.upper, node.step)
        )
        return node

    def _reported(
        self, node: ast.expr, name: str, parts: Callable[[], list[ast.expr]], named: list[ast.keyword] | None = None
    ) -> ast.AST:
        """Return the call of the recorder that stands for an expression; ``parts`` are replaced within."""
        number = len(self._expressions)
        self._expressions.append(Expression(self._file, node.lineno, self._functions[-1], ast.unparse(node)))
        begin = ast.Call(ast.Name(BEGIN, ast.Load()), [ast.Constant(number)], [])
        call = ast.Call(ast.Name(name, ast.Load()), [begin, *parts()], named or [])
        return _around(WHOLE, ast.copy_location(call, node))


def _around(name: str, value: ast.expr, *others: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [value, *others], []), value)


def _reads_frames(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _OF_FRAMES or any(name.endswith(f".{function.id}") for name in _OF_MODULES)
    return ast.unparse(function) in _OF_MODULES


def _index(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Slice):
        return node
    parts = [each if each is not None else ast.Constant(None) for each in (node.lower, node.upper, node.step)]
    return ast.Call(ast.Name(SLICE, ast.Load()), parts, [])

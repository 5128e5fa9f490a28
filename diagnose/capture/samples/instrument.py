"""The user's functions with each call, subscript and binary operation handed to a recorder, as code objects."""

from __future__ import annotations

import ast
import gc
import linecache
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import NamedTuple, TypeAlias

# Which expressions have one use: their value can be computed for the part alone that this use takes.
#
# A value has one use if the expression is an operand of another one, is returned, or is assigned to a name that is
# then read once, or by slices only. Anything else may use it again, unseen.

Place: TypeAlias = tuple[int, int, int | None, int | None]  # first line and column, last line and column

_SHAPES = frozenset({"shape", "ndim", "dtype", "size", "device"})
_OPERANDS = (ast.BinOp, ast.Call, ast.Subscript, ast.Return, ast.keyword)


def place_of(node: ast.expr) -> Place:
    """Return where an expression is."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def used_once(tree: ast.Module) -> set[Place]:
    """Return where the expressions with one use are."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            names: dict[str, list[ast.Name]] = defaultdict(list)
            for node in _own(scope):
                if isinstance(node, ast.Name):
                    names[node.id].append(node)
            for node in _own(scope):
                if isinstance(node, ast.BinOp | ast.Call | ast.Subscript) and _has_one_use(node, parents, names):
                    found.add(place_of(node))
    return found


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function; names that functions in it use count as its own."""
    for child in ast.iter_child_nodes(scope):
        yield from ast.walk(child)


def _has_one_use(node: ast.expr, parents: dict[int, ast.AST], names: dict[str, list[ast.Name]]) -> bool:
    match parents[id(node)]:
        case ast.Assign(targets=[ast.Name(id=name)]) as assigned:
            return _is_read_once(assigned, names[name], parents)
    return _is_operand(node, parents)


def _is_operand(node: ast.expr, parents: dict[int, ast.AST]) -> bool:
    """Return whether an expression is a part of another one or is returned: a method of it, or its shape, as well."""
    parent = parents[id(node)]
    is_method = isinstance(parent, ast.Attribute) and isinstance(parents[id(parent)], ast.Call)
    return is_method or isinstance(parent, _OPERANDS) or _is_of_shape(node, parents)


def _is_read_once(assigned: ast.Assign, uses: list[ast.Name], parents: dict[int, ast.AST]) -> bool:
    """Return whether what is assigned to a name is read by slices only, or once, until the next assignment to it."""
    stores = [name for name in uses if not isinstance(name.ctx, ast.Load)]
    reads = [name for name in uses if isinstance(name.ctx, ast.Load)]
    if len(stores) > 1:
        statements = _beside(assigned, parents)
        of = {id(name): _statement_of(name, statements, parents) for name in uses}
        if any(at < 0 for at in of.values()) or any(not _is_plain(statements[of[id(s)]], s) for s in stores):
            return False
        at = statements.index(assigned)
        end = min((of[id(name)] for name in stores if of[id(name)] > at), default=len(statements))
        reads = [name for name in reads if at < of[id(name)] <= end]
    reads = [name for name in reads if not _is_of_shape(name, parents)]
    return (len(reads) == 1 and _is_operand(reads[0], parents)) or all(_is_cut(name, parents) for name in reads)


def _beside(statement: ast.stmt, parents: dict[int, ast.AST]) -> list[ast.stmt]:
    """Return the statements of the block that one is in."""
    for _, block in ast.iter_fields(parents[id(statement)]):
        if isinstance(block, list) and statement in block:
            return [each for each in block if isinstance(each, ast.stmt)]
    return [statement]


def _statement_of(node: ast.AST, statements: list[ast.stmt], parents: dict[int, ast.AST]) -> int:
    """Return which statement of a block a node is in, -1 for none or a loop."""
    while node is not None:
        if node in statements:
            return -1 if isinstance(node, ast.For | ast.While | ast.If | ast.Try) else statements.index(node)
        node = parents.get(id(node))  # type: ignore[assignment]
    return -1


def _is_plain(statement: ast.stmt, name: ast.Name) -> bool:
    return isinstance(statement, ast.Assign) and statement.targets == [name]


def _is_of_shape(node: ast.expr, parents: dict[int, ast.AST]) -> bool:
    parent = parents[id(node)]
    is_length = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len"
    return is_length or getattr(parent, "attr", "") in _SHAPES


def _is_cut(name: ast.Name, parents: dict[int, ast.AST]) -> bool:
    parent = parents[id(name)]
    return isinstance(parent, ast.Subscript) and parent.value is name and isinstance(parent.ctx, ast.Load)


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

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._functions.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        self._functions.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_known = not _reads_frames(node.func)
        return self._reported(node, CALL, lambda: [node.func, *node.args], node.keywords, is_known=is_known)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        operation = ast.Constant(type(node.op).__name__)
        is_constant = all(
            isinstance(each, ast.BinOp | ast.UnaryOp | ast.Constant | ast.operator | ast.unaryop)
            for each in ast.walk(node)
        )
        return self._reported(node, OPERATION, lambda: [operation, node.left, node.right], is_known=not is_constant)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        def index() -> ast.expr:
            if isinstance(node.slice, ast.Tuple):
                return ast.Tuple([_index(each) for each in node.slice.elts], ast.Load())
            return _index(node.slice)

        is_spread = any(isinstance(each, ast.Starred) for each in getattr(node.slice, "elts", ()))
        is_known = isinstance(node.ctx, ast.Load) and not is_spread
        return self._reported(node, GET, lambda: [node.value, index()], is_known=is_known)

    def _reported(
        self,
        node: ast.expr,
        name: str,
        parts: Callable[[], list[ast.expr]],
        named: list[ast.keyword] | None = None,
        *,
        is_known: bool,
    ) -> ast.AST:
        """Return the call of the recorder that stands for an expression, whose ``parts`` are replaced before."""
        if not self._functions or not is_known:
            return self.generic_visit(node)
        number = len(self._expressions)
        has_one_use = place_of(node) in self._single
        self._expressions.append(
            Expression(self._file, node.lineno, self._functions[-1], ast.unparse(node), has_one_use)
        )
        self.generic_visit(node)
        begin = ast.Call(ast.Name(BEGIN, ast.Load()), [ast.Constant(number)], [])
        call = ast.Call(ast.Name(name, ast.Load()), [begin, *parts()], named or [])
        return ast.copy_location(call, node)


def _reads_frames(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _OF_FRAMES or any(name.endswith(f".{function.id}") for name in _OF_MODULES)
    return ast.unparse(function) in _OF_MODULES


def _index(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Slice):
        return node
    parts = [each if each is not None else ast.Constant(None) for each in (node.lower, node.upper, node.step)]
    return ast.Call(ast.Name(SLICE, ast.Load()), parts, [])

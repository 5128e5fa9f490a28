"""Finds what goes through a list or a deque each time: tests of membership in a list, and a deque that is indexed.

A class or a module builds it once.
What is taken down is the test's lines, the list's name and the lines around the expression that builds it, those with a
credential left out. A list that is assigned twice, that may hold what has no hash, or that is short, is none of these.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from diagnose.capture.record.excerpts import excerpt_of

__all__ = ["list_lookups"]

MAX_LOOKUPS = 100
MAX_BUILT_LINES = 60
MIN_LISTED = 8  # going through fewer values takes about as long as a hash
MIN_INDEXED = 1000  # an index passes 64 values at once
_BUILDERS = frozenset({"list", "tuple", "sorted"})
_WITHOUT_HASH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_BINDS = (ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias, ast.ExceptHandler, ast.MatchAs)

_Named: TypeAlias = ast.Attribute | ast.Name
_Access: TypeAlias = ast.Compare | ast.Subscript
_Test: TypeAlias = tuple[_Access, _Named, ast.expr]  # the expression, what it goes through, what that was built by


def list_lookups(tree: ast.Module, lines: Sequence[str]) -> list[Mapping[str, object]]:
    """Return the tests of membership in lists, as ``LookupRecord`` has them, but for the file's name."""
    nodes = list(ast.walk(tree))
    tested = {id(right) for node in nodes for _, right in _looked_up(node)}
    used = {name for node in nodes if id(node) not in tested for name in _used(node)}
    found: list[Mapping[str, object]] = []
    for node, right, built in (*_of_module(tree, nodes), *_of_classes(nodes)):
        if _is_long_deque(built) if isinstance(node, ast.Subscript) else _is_long_list(built):
            name = right.attr if isinstance(right, ast.Attribute) else right.id
            found.append(
                {
                    "line": node.lineno,
                    "last": node.end_lineno or node.lineno,
                    "name": ast.unparse(right),
                    "built": built.lineno,
                    "indexed": isinstance(node, ast.Subscript),
                    "made": _shown(built, lines) if name not in used and _is_in_place(built) else None,
                }
            )
    return found[:MAX_LOOKUPS]


def _looked_up(node: ast.AST) -> Iterator[tuple[ast.Compare, _Named]]:
    """Yield what ``in`` and ``not in`` have on their right: a name, or an attribute of one."""
    if isinstance(node, ast.Compare):
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if not isinstance(operator, ast.In | ast.NotIn) or not isinstance(right, ast.Name | ast.Attribute):
                continue
            if isinstance(right, ast.Name) or isinstance(right.value, ast.Name):
                yield node, right


def _accessed(node: ast.AST) -> Iterator[tuple[_Access, _Named]]:
    """Yield what a test or an index that is computed goes through: a name, or an attribute of one."""
    yield from _looked_up(node)
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return
    named, index = node.value, node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
    if not isinstance(named, ast.Name | ast.Attribute) or isinstance(index, ast.Constant | ast.Slice):
        return  # both ends of a deque are near
    if isinstance(named, ast.Name) or isinstance(named.value, ast.Name):
        yield node, named


def _of_module(tree: ast.Module, nodes: Sequence[ast.AST]) -> Iterator[_Test]:
    """Yield the accesses to what the module itself assigns to a name that nothing else in the file has."""
    bound = Counter(name for node in nodes for name in _bound(node))
    built = dict(_assigned(tree.body))
    for node in nodes:
        for test, right in _accessed(node):
            if isinstance(right, ast.Name) and right.id in built and bound[right.id] == 1:
                yield test, right, built[right.id]


def _of_classes(nodes: Sequence[ast.AST]) -> Iterator[_Test]:
    """Yield the accesses of methods to what their class assigns to an attribute that the file assigns nowhere else."""
    stored = Counter(node.attr for node in nodes if isinstance(node, ast.Attribute) and not _is_read(node))
    for cls in nodes:
        if not isinstance(cls, ast.ClassDef):
            continue
        in_body = dict(_assigned(cls.body))
        methods = [(each, _own_name(each)) for each in cls.body if isinstance(each, ast.FunctionDef)]
        owned = [(node, own) for method, own in methods for node in ast.walk(method)]
        built = in_body | {
            target.attr: value
            for node, own in owned
            for target, value in _assignments(node)
            if isinstance(target, ast.Attribute) and _is_name(target.value, own)
        }
        once = {name for name in built if stored[name] + (name in in_body) == 1}
        for test, right, own in ((*found, own) for node, own in owned for found in _accessed(node)):
            if isinstance(right, ast.Attribute) and _is_name(right.value, own) and right.attr in once:
                yield test, right, built[right.attr]


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not _is_read(node):
        yield node.id
    elif isinstance(node, _BINDS):
        names = (getattr(node, field, None) for field in ("arg", "name", "asname"))
        yield from {name for name in names if isinstance(name, str)}


def _is_read(node: _Named) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a body itself assigns to, and what."""
    for statement in body:
        yield from ((target.id, value) for target, value in _assignments(statement) if isinstance(target, ast.Name))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        yield node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def _own_name(method: ast.FunctionDef) -> str:
    """Return what a method calls its object, "" where it has none."""
    return method.args.args[0].arg if method.args.args else ""


def _is_long_list(built: ast.expr) -> bool:
    """Return whether an expression gives a list or a tuple that may be long, of values that may have a hash."""
    if isinstance(built, ast.List | ast.Tuple):
        spread = any(isinstance(value, ast.Starred) for value in built.elts)
        has_hash = not any(isinstance(value, _WITHOUT_HASH) for value in built.elts)
        return has_hash and (spread or len(built.elts) >= MIN_LISTED)
    if isinstance(built, ast.ListComp):
        return not isinstance(built.elt, _WITHOUT_HASH)
    return isinstance(built, ast.Call) and isinstance(built.func, ast.Name) and built.func.id in _BUILDERS


def _is_long_deque(built: ast.expr) -> bool:
    """Return whether an expression makes a deque that may be long."""
    if not isinstance(built, ast.Call):
        return False
    name = built.func.attr if isinstance(built.func, ast.Attribute) else getattr(built.func, "id", "")
    lengths = [*built.args[1:2], *(word.value for word in built.keywords if word.arg == "maxlen")]
    short = (
        isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value < MIN_INDEXED for each in lengths
    )
    return name == "deque" and not any(short)


def _is_in_place(built: ast.expr) -> bool:
    """Return whether the expression becomes a set by other brackets, or by another word."""
    if isinstance(built, ast.Call):
        one = len(built.args) == 1 and not built.keywords and not isinstance(built.args[0], ast.Starred)
        return one and isinstance(built.func, ast.Name) and built.func.id == "list"
    return isinstance(built, ast.List | ast.ListComp)


def _used(node: ast.AST) -> Iterator[str]:
    """Yield the name or attribute that is read, or spelled, as ``getattr`` and ``__all__`` do."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Attribute | ast.Name) and _is_read(node):
        yield node.attr if isinstance(node, ast.Attribute) else node.id


def _shown(built: ast.expr, lines: Sequence[str]) -> Mapping[str, object] | None:
    """Return the lines around the expression and its place in them, None where they are many or hold a credential."""
    if (built.end_lineno or built.lineno) - built.lineno > MAX_BUILT_LINES:
        return None
    shown = excerpt_of(built, lines)
    # The file is the one that holds the test.
    return None if shown is None else {"name": "list", "file": "", **shown._asdict()}

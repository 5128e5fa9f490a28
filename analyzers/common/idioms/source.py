"""The statement at a slow line as a tree, with what its source shows around it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnose.model.assignments import Binding, assigned, name_of

__all__ = ["Idiom", "Source", "last_name", "parsed", "replaced", "runnable", "same", "source_at"]

_ONCE = frozenset({"", "__init__", "__post_init__", "__new__", "setup"})  # where attributes get their values
_MODULES = frozenset({"np", "numpy"})
_LISTS = frozenset({"list", "sorted", "tolist", "split", "rsplit", "splitlines", "readlines", "findall"})
_MADE_BY = {
    **dict.fromkeys(_LISTS, "list"),
    **dict.fromkeys(("dict", "Counter", "defaultdict", "OrderedDict"), "dict"),
    **dict.fromkeys(("set", "frozenset"), "set"),
    **dict.fromkeys(("str", "join", "strip", "lower", "upper", "replace", "read", "read_text", "decode"), "str"),
    **dict.fromkeys(("numpy", "to_numpy", "astype"), "array"),
    **dict.fromkeys(("DataFrame", "read_csv", "read_parquet", "read_json", "reset_index"), "frame"),
    **dict.fromkeys(("len", "int", "ord"), "int"),
    "deque": "deque",
    "tuple": "tuple",
}
_DISPLAYS: Mapping[type[ast.expr], str] = {
    ast.List: "list", ast.ListComp: "list", ast.Tuple: "tuple", ast.Dict: "dict", ast.DictComp: "dict",
    ast.Set: "set", ast.SetComp: "set", ast.JoinedStr: "str",
}  # fmt: skip
_ANNOTATED = {"list": "list", "List": "list", "Sequence": "list", "dict": "dict", "Dict": "dict", "set": "set"}
_NAMED = {"str": "str", "int": "int", "np.ndarray": "array", "Tensor": "tensor", "torch.Tensor": "tensor"}


class Idiom(NamedTuple):
    """A faster form of what a line does; ``least`` is the share of the line's time that goes at least.

    Where the line takes less than ``sure_from_ns`` for each sample, nothing may be gained.
    """

    title: str  # imperative; the line follows
    before: str
    after: str
    condition: str  # of the same numbers, or what changes
    needs: str = ""
    is_identical: bool = True
    least: float = 0.5
    sure_from_ns: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """One statement, the function or loop around it, and what else is known of its names."""

    statement: ast.stmt
    around: ast.AST
    is_whole: bool  # all of the function is known, not its sampled statements alone
    bindings: Sequence[Binding] = ()
    _local: dict[str, list[ast.expr | None]] = field(default_factory=dict)

    def own(self) -> Iterator[ast.AST]:
        """Yield the nodes of the statement, of one with a body those of its head."""
        for part in _head(self.statement):
            yield from ast.walk(part)

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls of the statement."""
        return (node for node in self.own() if isinstance(node, ast.Call))

    @property
    def local(self) -> Mapping[str, list[ast.expr | None]]:
        """Return the values of each name that is bound in the function, None for those that are no expression."""
        if not self._local:
            for node in ast.walk(self.around):
                for target, value in assigned(node):
                    if name := name_of(target):
                        is_item = isinstance(target, ast.Subscript)
                        self._local.setdefault(name, []).append(None if is_item else value)
            self._local.setdefault("", [])
        return self._local

    @property
    def given(self) -> Mapping[str, ast.expr | None]:
        """Return the parameters of the function, each with an expression of the type that it is annotated with."""
        arguments = self.around.args if isinstance(self.around, ast.FunctionDef | ast.AsyncFunctionDef) else None
        each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs] if arguments is not None else []
        return {one.arg: one.annotation and _example(one.annotation) for one in each if one.arg != "self"}

    def values(self, name: str) -> list[ast.expr | None]:
        """Return the values that a name gets, in the function where it is bound there, else in its module or class."""
        known = [] if "." in name else self.local.get(name, [])
        if known or name in self.given:
            annotated = self.given.get(name)
            return [*known, *([annotated] if annotated is not None or not known else [])]
        trees = (parsed(one.text) for one in self.bindings if one.name == name)
        return [tree.value for tree in trees if isinstance(tree, ast.Assign) and name_of(tree.targets[0]) == name
                and not isinstance(tree.targets[0], ast.Subscript)]  # fmt: skip

    def kind(self, value: ast.expr | None, within: frozenset[str] = frozenset()) -> str:
        """Return the type of an expression: "list", "array", "str", …; "" if the source does not show it."""
        match value:
            case ast.Constant(value=known):
                return type(known).__name__ if known is not ... else ""
            case ast.Call(func=function):
                return _made_by(function)
            case ast.Name() | ast.Attribute():
                name = name_of(value) or f"self.{last_name(value)}"
                values = [each for each in self.values(name) if not _is_own(each, name)]
                kinds = {self.kind(each, within | {name}) for each in values} if name not in within else set()
                return kinds.pop() if len(kinds) == 1 else ""
            case ast.Subscript(value=inner, slice=ast.Slice()):
                return self.kind(inner, within)
            case ast.BinOp(left=left, right=right):
                return self.kind(left, within) or self.kind(right, within)
        return _DISPLAYS.get(type(value), "") if value is not None else ""

    def changes(self, value: ast.expr, within: frozenset[str] = frozenset()) -> bool | None:
        """Return whether an expression may have another value at the next call; None if that is not known."""
        found: list[bool | None] = []
        for name in set(names_in(value)) - within:
            local = [] if "." in name else self.local.get(name, [])
            for each in local:
                is_moved = each is None or (_is_own(each, name) and self._is_in_loop(each))
                found.append(True if is_moved or each is None else self.changes(each, within | {name}))
            if not local and name in self.given:
                found.append(None)
            if "." in name:
                written = [one.function not in _ONCE for one in self.of(name)]
                found.append(any(written) if written else None)
        return True if True in found else None if None in found else False

    def _is_in_loop(self, value: ast.AST) -> bool:
        loop = self.loop(outermost=True)
        return loop is not None and any(node is value for node in ast.walk(loop))

    def of(self, name: str) -> list[Binding]:
        """Return what binds a name of the module or an attribute."""
        return [one for one in self.bindings if one.name == name]

    def loop(self, *, outermost: bool = False) -> ast.For | ast.While | None:
        """Return the innermost loop around the statement, or the outermost."""
        loops = [node for node in ast.walk(self.around) if isinstance(node, ast.For | ast.While)]
        around = [loop for loop in loops if any(one is self.statement for part in loop.body for one in ast.walk(part))]
        return next(iter(around if outermost else reversed(around)), None)

    def uses(self, name: str, within: ast.AST) -> list[ast.AST]:
        """Return the nodes inside one that are a name's, those of the statement left out."""
        mine = {id(node) for node in ast.walk(self.statement)}
        return [node for node in ast.walk(within) if id(node) not in mine and isinstance(node, ast.Name | ast.Attribute)
                and ast.unparse(node) == name]  # fmt: skip

    def now(self, replaced_by: Mapping[ast.AST, str]) -> str:
        """Return the statement's text with other texts in place of some nodes, of one with a body its head."""
        text = replaced(self.statement, replaced_by)
        return text.partition("\n")[0] if hasattr(self.statement, "body") else text


def _made_by(function: ast.expr) -> str:
    """Return the type of what a call of this function gives."""
    root, name = ast.unparse(function).partition(".")[0], last_name(function)
    if root == "torch":
        return "tensor"
    if root in _MODULES:
        return "" if "random" in ast.unparse(function) else "array"
    return _MADE_BY.get(name, "")


def _is_own(value: ast.expr | None, name: str) -> bool:
    """Return whether the value of a name is computed from the one that it had."""
    return value is not None and name in names_in(value)


def _head(statement: ast.stmt) -> Iterable[ast.AST]:
    match statement:
        case ast.For(iter=part) | ast.AsyncFor(iter=part) | ast.If(test=part) | ast.While(test=part):
            return (part,)
        case ast.With(items=items):
            return items
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Try():
            return ()
    return (statement,)


def _example(annotation: ast.expr) -> ast.expr | None:
    """Return an expression of the type that an annotation names."""
    text = ast.unparse(annotation)
    kind = _ANNOTATED.get(text.partition("[")[0]) or _NAMED.get(text, "")
    made = {"list": "[...]", "dict": "{...: ...}", "set": "{...}", "str": "''", "int": "0", "array": "np.array(...)",
            "tensor": "torch.tensor(...)"}  # fmt: skip
    return ast.parse(made[kind], mode="eval").body if kind in made else None


def names_in(value: ast.AST) -> Iterator[str]:
    """Yield the variables and attributes of ``self`` that an expression reads; of modules and others' their root."""
    if isinstance(value, ast.Name | ast.Attribute) and name_of(value):
        yield name_of(value)
        return
    for node in ast.iter_child_nodes(value):
        yield from names_in(node)


def last_name(function: ast.expr) -> str:
    """Return what is called without what it is called of."""
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def same(one: ast.AST | None, other: ast.AST | None) -> bool:
    """Return whether two expressions have one text."""
    return one is not None and other is not None and ast.unparse(one) == ast.unparse(other)


def runnable(text: str) -> str:
    """Return a statement, the head of one with a body that does nothing."""
    return f"{text} ..." if text.endswith(":") else text


def replaced(tree: ast.AST, by: Mapping[ast.AST, str]) -> str:
    """Return the text of a tree with other texts in the place of some of its nodes."""
    made = _Replaced(by).made(tree)
    return "\n".join(map(ast.unparse, made))


class _Replaced:
    """Makes a tree again, and leaves the given one as it is."""

    def __init__(self, by: Mapping[ast.AST, str]) -> None:
        self._by = {id(node): text for node, text in by.items()}

    def made(self, node: ast.AST) -> list[ast.AST]:
        """Return what stands in the place of a node: a statement may become several."""
        if (text := self._by.get(id(node))) is not None:
            return list(ast.parse(text).body) if isinstance(node, ast.stmt) else [ast.parse(text, mode="eval").body]
        values: dict[str, object] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                values[name] = [
                    new for each in value for new in (self.made(each) if isinstance(each, ast.AST) else [each])
                ]
            else:
                values[name] = self.made(value)[0] if isinstance(value, ast.AST) else value
        return [ast.copy_location(type(node)(**values), node)]


def parsed(text: str) -> ast.stmt | None:
    """Return the first statement of a text, of a head with a body of its own; None of what is no statement."""
    text = text.strip().removeprefix("el") if text.strip().startswith("elif") else text.strip()
    try:
        body = ast.parse(runnable(text)).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return body[0] if body else None


def source_at(
    line: int, functions: Iterable[tuple[int, str]], sampled: Mapping[int, str], bindings: Sequence[Binding]
) -> Source | None:
    """Return the statement at a line; ``sampled`` are texts of lines of its function, where that is not stored."""
    for first, text in sorted(functions, key=lambda each: len(each[1])):  # the innermost first
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        body = tree.body[0] if len(tree.body) == 1 else tree
        at = [
            node for node in ast.walk(body) if isinstance(node, ast.stmt) and first <= line == node.lineno + first - 1
        ]
        if at:
            return Source(at[-1], body, True, bindings)
    statements = {number: one for number, text in sorted(sampled.items()) if (one := parsed(text)) is not None}
    if line not in statements:
        return None
    return Source(statements[line], ast.Module(list(statements.values()), []), False, bindings)

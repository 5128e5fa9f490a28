"""The statement at a slow line as a tree, with what its source shows around it, and how it is edited."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from diagnose.model.assignments import Binding, StoredSource, assigned, changed_in_place, name_of
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import EditedStatement, OwnSource, parsed_statement, parsed_statements, span, spliced

__all__ = ["Idiom", "Promise", "Source", "last_name", "names_in", "same", "source_at", "statement_at"]

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
_SEEN = {
    "builtins.int": "int", "builtins.str": "str", "builtins.list": "list", "builtins.tuple": "tuple",
    "builtins.dict": "dict", "builtins.set": "set", "builtins.frozenset": "set", "collections.deque": "deque",
    "numpy.ndarray": "array", "torch.Tensor": "tensor", "pandas.DataFrame": "frame",
}  # fmt: skip
_NAMED = {"str": "str", "int": "int", "np.ndarray": "array", "Tensor": "tensor", "torch.Tensor": "tensor"}


Promise: TypeAlias = Literal["identical", "rounding", "redrawn", "other"]


class Idiom(NamedTuple):
    """A faster form of what a line does; ``least`` is the share of the line's time that goes at least.

    Where the line takes less than ``sure_from_ns`` for each sample, nothing may be gained.
    """

    title: str  # imperative; the line follows
    edits: tuple[EditedStatement, ...]  # that make it; () if the source does not show all that they would change
    condition: str = ""  # of the same numbers, or what changes
    needs: str = ""
    promise: Promise = "identical"
    least: float = 0.5
    sure_from_ns: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """One statement, the function or loop around it, and what else is known of its names."""

    statement: ast.stmt
    around: ast.AST
    is_whole: bool  # all of the function is known, not its sampled statements alone
    text: str  # of ``around``, else of the statement
    first: int  # its line
    bindings: Sequence[Binding] = ()
    seen: Mapping[str, str] = field(default_factory=dict)  # types that expressions had as the script ran
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
        trees = (parsed_statement(one.text) for one in self.bindings if one.name == name)
        return [tree.value for tree in trees if isinstance(tree, ast.Assign) and name_of(tree.targets[0]) == name
                and not isinstance(tree.targets[0], ast.Subscript)]  # fmt: skip

    def kind(self, value: ast.expr | None, within: frozenset[str] = frozenset()) -> str:
        """Return the type of an expression: "list", "array", "str", …; "" if neither run nor source show it."""
        seen = _SEEN.get(self.seen.get(ast.unparse(value), ""), "") if self.seen and value is not None else ""
        return seen or self._shown_kind(value, within)

    def _shown_kind(self, value: ast.expr | None, within: frozenset[str]) -> str:
        match value:
            case ast.Constant(value=known) | ast.Subscript(ast.Attribute(attr="shape"), ast.Constant(int() as known)):
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
            written = [one.function not in _ONCE for one in self.of(name)] if not local else []
            found.append(any(written) if written or "." not in name else None)
            found.append(name in set(map(changed_in_place, ast.walk(self.around))))
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

    def now(self, replaced_by: Mapping[ast.AST, str], node: ast.AST | None = None) -> str:
        """Return the text of the statement, or of another node, with other texts in the place of some nodes.

        Of a statement with a body it is the head.
        """
        node = self.statement if node is None else node
        body = getattr(node, "body", None)
        start, end = span(self.text, node)
        end = span(self.text, body[0])[0] if isinstance(body, list) else end
        known = [(*span(self.text, each), text) for each, text in replaced_by.items()]
        parts = [(a, b, text) for a, b, text in known if start <= a < b <= end]
        outer = [
            (a, b, text) for a, b, text in parts if not any(c <= a and b <= d and (a, b) != (c, d) for c, d, _ in parts)
        ]
        whole = self.text.encode()[start:end].decode().rstrip()
        return spliced(whole, [(a - start, b - start, text) for a, b, text in outer])

    def line(self, node: ast.AST) -> int:
        """Return the line of the file at which a node begins."""
        return self.first + int(getattr(node, "lineno", 1)) - 1

    def edited(self, replaced_by: Mapping[ast.AST, str], node: ast.stmt | None = None) -> EditedStatement:
        """Return the edit of the statement, or of another one, that puts texts in the place of some nodes."""
        node = self.statement if node is None else node
        return EditedStatement(self.line(node), self.now({}, node), self.now(replaced_by, node))

    def after(self, text: str, node: ast.stmt | None = None) -> EditedStatement:
        """Return the edit that puts statements in the place of the statement, or of another one."""
        node = self.statement if node is None else node
        return EditedStatement(self.line(node), self.now({}, node), text)

    def once(self, value: ast.expr, made: str) -> tuple[EditedStatement, ...]:
        """Return the edit that runs statements once an expression has the value that it keeps; () if that is unknown.

        They go below what binds its names, if that is one statement, else above the outermost loop that binds none.
        """
        names, loop = set(names_in(value)), self.loop(outermost=True)
        own = names & {*self.local, *self.given}
        if not self.is_whole:
            return ()
        above: tuple[EditedStatement, ...] = ()
        if loop is not None and not names & {
            name_of(each.target) for node in ast.walk(loop) for each in assigned(node)
        }:
            above = (self.after(f"{made}\n{self.now({}, loop)}", loop),)
        bound = [one for name in names - own for one in self.of(name)]
        if own:
            here = [node for node in ast.walk(self.around) if isinstance(node, ast.Assign)
                    and own & {name_of(each.target) for each in assigned(node)}]  # fmt: skip
            is_one = len(here) == 1 and own <= {name_of(each.target) for each in assigned(here[0])}
            return above or ((EditedStatement(self.line(here[0]), "", made),) if is_one else ())
        if not bound:
            return above or (EditedStatement(0, "", made),)
        last = max(bound, key=lambda one: ("." in one.name, one.line))
        is_once = len({one.name for one in bound}) == len(bound) and last.function in _ONCE and last.line
        return (EditedStatement(last.line, "", made),) if is_once else above


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
            return Source(at[-1], body, True, text, first, bindings)
    heads = {number: parsed_statements(text) for number, text in sorted(sampled.items())}
    statements = {number: found[0] for number, found in heads.items() if found}
    if line not in statements:
        return None
    around = ast.Module(list(statements.values()), [])
    return Source(statements[line], around, False, sampled[line].strip(), line, bindings)


def statement_at(source: OwnSource, line: Frame) -> Source | None:
    """Return the statement at a line whose function is stored."""
    stored = source.whole.get(line.file, StoredSource())
    return source_at(line.line, stored.functions, {}, stored.bindings)

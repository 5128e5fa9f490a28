"""The body of a loop of the user's as one list of statements, with the functions that it calls in their place.

A statement gives values to cells and reads others: a variable of one call of a function, an entry of a dictionary or a
tuple with a constant key, an attribute of any object by its name, the state of a copied module. What is not known to
have no effect but its result has one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from diagnose.capture.host.program import (
    Function,
    Program,
    last_name,
    methods_of_libraries,
    methods_of_values,
    own_nodes,
)
from diagnose.model.assignments import assigned, changed_in_place

__all__ = ["ANY", "OF_OBJECTS", "Branch", "Cell", "Flat", "Node", "Place", "TooManyError", "scope_of"]

Cell: TypeAlias = tuple[int, str]  # number of the call of a function, and name; -1: an attribute of any object
Place: TypeAlias = tuple[str, int]  # file, first line of a statement
Cells: TypeAlias = frozenset[Cell]
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_Found: TypeAlias = tuple[str, str, Function]  # file, class and function

OF_OBJECTS = -1
ANY: Cell = (OF_OBJECTS, "*")  # all attributes
_MODES = frozenset({"train", "eval"})  # a module's: nothing is made
_FRESH_CALLS = frozenset(
    {"list", "dict", "set", "deque", "Counter", "defaultdict", "zeros", "ones", "empty", "full", "arange", "tensor",
     "zeros_like", "ones_like", "empty_like", "full_like", "clone", "copy", "deepcopy", "array", "eye", "linspace"}
)  # fmt: skip
_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.BinOp, ast.Compare,
          ast.UnaryOp, ast.JoinedStr)  # fmt: skip


class TooManyError(Exception):
    """The body is too long to be looked at."""


class Branch(NamedTuple):
    """One side of an `if`: where it begins, and which one it is."""

    place: Place
    number: int


@dataclass(slots=True)
class Node:
    """One statement, or a part of it."""

    chain: tuple[Place, ...]  # of the statement and of the calls that lead to it, the loop's own statement first
    branches: tuple[Branch, ...]  # that it is in, the outermost first
    reads: Cells
    gives: Cells
    has_effect: bool = False
    is_whole: bool = True  # what it gives values to does not keep a part of the old ones
    counts: bool = False  # it adds a number to a variable
    is_real: bool = True  # the script has it: it does not only hand arguments over
    names: tuple[str, ...] = ()  # of the script, that it gives values to
    decides: tuple[int, ...] = ()  # numbers of the branches that it is the condition of


class Value(NamedTuple):
    """What an expression is made of: of all of it, and of its parts by key."""

    base: Cells = frozenset()
    parts: Mapping[object, Cells] = {}

    @property
    def every(self) -> Cells:
        """Return all cells that it is made of."""
        return self.base.union(*self.parts.values())


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a statement stands."""

    number: int  # of the call
    file: str
    owner: str  # the class of a method
    own: str  # the name of the object in it
    body: ast.AST
    bound: frozenset[str]
    fresh: frozenset[str]
    chain: tuple[Place, ...] = ()
    branches: tuple[Branch, ...] = ()
    needs: Cells = frozenset()  # of the conditions around
    loop: Cell | None = None  # around
    calls: tuple[ast.AST, ...] = ()  # functions around


def scope_of(file: str, body: ast.AST, owner: str = "", number: int = 0) -> _Scope:
    """Return the scope of a function, or of a module."""
    names, values = set[str](), dict[str, list[ast.expr | None]]()
    for node in own_nodes(body):
        for target, value in assigned(node):
            for each in ast.walk(target):
                if (
                    isinstance(each, ast.Name)
                    and isinstance(each.ctx, ast.Store)
                    and not isinstance(node, ast.AugAssign)
                ):
                    values.setdefault(each.id, []).append(value if each is target else None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                values.setdefault(name, []).append(None)
    own = ""
    if isinstance(body, Function):
        args = [*body.args.posonlyargs, *body.args.args, *body.args.kwonlyargs, body.args.vararg, body.args.kwarg]
        given = [each.arg for each in args if each is not None]
        own = given[0] if owner and given else ""
        names.update(given)
        for name in given:
            values.setdefault(name, []).append(None)
    fresh = frozenset(name for name, each in values.items() if all(map(_is_fresh, each)))
    return _Scope(number, file, owner, own, body, frozenset(names), fresh)


def _is_fresh(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return last_name(value.func) in _FRESH_CALLS
    return isinstance(value, _FRESH)


class Flat:
    """The statements of one loop's body, in the order in which they run."""

    def __init__(self, program: Program, scope: _Scope, loop: _Loop) -> None:
        self.nodes: list[Node] = []
        self.functions: set[ast.AST] = set()  # whose statements are among them
        self._program, self._num, self._root = program, scope.number, scope.number
        self._keys: dict[Cell, set[object]] = {}
        self._pure_methods, self._of_libraries = methods_of_values(), methods_of_libraries()
        self._alone: ast.expr | None = None  # the call that a statement is
        if isinstance(loop, ast.While):
            here = replace(scope, chain=((scope.file, loop.lineno),))
            self._effect(self._read(loop.test, here).every, here)
        self._block(loop.body, scope)

    def _add(self, scope: _Scope, reads: Cells, gives: Iterable[Cell] = ()) -> Node:
        if len(self.nodes) >= 20_000:  # of a loop's body with what it calls
            raise TooManyError
        self.nodes.append(Node(scope.chain, scope.branches, reads | scope.needs, frozenset(gives)))
        return self.nodes[-1]

    def _effect(self, reads: Cells, here: _Scope) -> None:
        self._add(here, reads).has_effect = True

    def _next(self) -> int:
        self._num += 1
        return self._num

    # Statements.

    def _block(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        for i, one in enumerate(body):
            here = replace(scope, chain=(*scope.chain, (scope.file, one.lineno)))
            if isinstance(one, ast.If):
                rest = body[i + 1 :]
                if rest and not one.orelse and isinstance(one.body[-1], ast.Return | ast.Continue):
                    self._if(one, rest, here, scope)  # what follows is the other side
                    return
                self._if(one, one.orelse, here, scope)
            elif isinstance(one, _Loop):
                self._loop(one, here, scope)
            elif isinstance(one, ast.With | ast.AsyncWith):
                for item in one.items:
                    value = self._read(item.context_expr, here)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value, here)
                self._block(one.body, scope)
            elif isinstance(one, ast.Try):
                for part in (one.body, *(each.body for each in one.handlers), one.orelse, one.finalbody):
                    self._block(part, scope)
            else:
                self._statement(one, here)

    def _statement(self, one: ast.stmt, here: _Scope) -> None:
        match one:
            case ast.Assign(targets=targets, value=value):
                made = self._read(value, here)
                for target in targets:
                    self._assign(target, made, here)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._assign(target, self._read(value, here), here)
            case ast.AugAssign(target=target, value=value):
                self._add_to(target, value, here)
            case ast.Expr(value=value):
                self._alone = value
                self._read(value, here)
            case ast.Pass() | ast.Import() | ast.ImportFrom():
                pass
            case _:
                self._leave(one, here)

    def _leave(self, one: ast.stmt, here: _Scope) -> None:
        """Note a statement that ends a function or a loop's turn; others, which are rare, have effects."""
        is_inside = here.number != self._root
        match one:
            case ast.Return(value=value) if is_inside:
                made = self._read(value, here) if value is not None else Value()
                self._give((here.number, "return"), made, here)
                self._hand(here, frozenset(), [(here.number, "exit")]).is_whole = False
            case ast.Break() | ast.Continue() if here.loop is not None:
                self._hand(here, frozenset(), [here.loop]).is_whole = False
            case ast.Raise() | ast.Assert() if is_inside:
                self._add(here, self._all_names(one, here))
            case _:
                self._effect(self._all_names(one, here), here)

    def _if(self, one: ast.If, other: Sequence[ast.stmt], here: _Scope, scope: _Scope) -> None:
        reads = self._read(one.test, here).every
        cell, at = (scope.number, f"if {self._next()}"), len(self.nodes)
        test = self._add(here, reads, [cell])
        decides = list[int]()
        for part in filter(None, (one.body, other)):
            branch = Branch((scope.file, part[0].lineno), self._next())
            decides.append(branch.number)
            self._block(part, replace(scope, branches=(*scope.branches, branch), needs=scope.needs | {cell}))
        test.decides = tuple(decides)
        test.has_effect = any(each.has_effect for each in self.nodes[at:])

    def _loop(self, one: _Loop, here: _Scope, scope: _Scope) -> None:
        value = self._read(one.test if isinstance(one, ast.While) else one.iter, here)
        cell, at = (scope.number, f"loop {self._next()}"), len(self.nodes)
        head = self._add(here, value.every, [cell])
        if not isinstance(one, ast.While):
            self._assign(one.target, Value(value.every), here)
        self._block(one.body, replace(scope, needs=scope.needs | {cell}, loop=cell))
        self._block(one.orelse, scope)
        head.has_effect = any(each.has_effect for each in self.nodes[at:])

    def _assign(self, target: ast.expr, value: Value, here: _Scope) -> None:
        match target:
            case ast.Name(id=name):
                self._give(self._cell(name, here), value, here, name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for i, each in enumerate(parts):
                    known = value.base | value.parts[i] if i in value.parts else value.every
                    self._assign(each, Value(known), here)
            case ast.Starred(value=inner):
                self._assign(inner, Value(value.every), here)
            case ast.Attribute(value=ast.Name(id=own), attr=name) if own == here.own:
                self._add(here, value.every, [(OF_OBJECTS, name)]).names = (f"{own}.{name}",)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)) if name in here.fresh:
                cell = self._cell(name, here)
                self._keys.setdefault(cell, set()).add(key)
                self._add(here, value.every, [_part(cell, key)]).names = (name,)
            case _:
                self._change(target, value.every, here)

    def _add_to(self, target: ast.expr, value: ast.expr, here: _Scope) -> None:
        reads = self._read(value, here).every
        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == here.own
        if not (own or (isinstance(target, ast.Name) and target.id in here.bound)):
            self._change(target, reads, here)
            return
        cell = self._cell(target.id, here) if isinstance(target, ast.Name) else (OF_OBJECTS, last_name(target))
        node = self._add(here, reads | self._read(target, here).every, [cell])
        node.names = (ast.unparse(target),)
        node.counts = isinstance(value, ast.Constant)

    def _give(self, cell: Cell, value: Value, here: _Scope, name: str = "") -> None:
        self._keys.setdefault(cell, set()).update(value.parts)
        self._add(here, value.base, [cell]).names = (name,) if name else ()
        for key, cells in value.parts.items():
            of_part = f"{name}[{key!r}]" if isinstance(key, str) else name
            self._add(here, cells, [_part(cell, key)]).names = (of_part,) if name else ()

    def _hand(self, here: _Scope, reads: Cells, gives: Iterable[Cell]) -> Node:
        """Note what is handed on without a statement of the script's."""
        node = self._add(here, reads, gives)
        node.is_real = False
        return node

    def _change(self, changed: ast.expr, reads: Cells, here: _Scope) -> None:
        """Note that an object changes: a variable's that nothing else can hold, else one that anything may read."""
        inner = changed
        while isinstance(inner, ast.Subscript):
            reads |= self._read(inner.slice, here).every
            inner = inner.value
        reads |= self._read(inner, here).every
        if isinstance(inner, ast.Name) and inner.id in here.fresh:
            node = self._add(here, reads, [self._cell(inner.id, here)])
            node.is_whole, node.names = False, (inner.id,)
        else:
            self._effect(reads, here)

    # Expressions.

    def _cell(self, name: str, here: _Scope) -> Cell:
        return (here.number if name in here.bound or here.number == self._root else 0), name

    def _name(self, name: str, here: _Scope) -> Value:
        cell = self._cell(name, here)
        base = frozenset({cell, (cell[0], f"{name}#")})
        return Value(base, {key: frozenset({_part(cell, key)}) for key in self._keys.get(cell, ())})

    def _all_names(self, node: ast.AST, here: _Scope) -> Cells:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        attributes = {(OF_OBJECTS, each.attr) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        return frozenset(attributes).union(*(self._name(name, here).every for name in names))

    def _every(self, nodes: Iterable[ast.expr], here: _Scope) -> Cells:
        return frozenset[Cell]().union(*(self._read(each, here).every for each in nodes))

    def _read(self, node: ast.expr, here: _Scope) -> Value:
        made: Value
        match node:
            case ast.Name(id=name):
                made = self._name(name, here)
            case ast.Attribute(value=held, attr=name):
                made = Value(self._read(held, here).every | _attribute(name))
            case ast.Call():
                made = self._call(node, here)
            case ast.Dict() | ast.Tuple() | ast.Subscript():
                made = self._read_parts(node, here)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                made = self._comprehension(node, here)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, made := self._read(value, here), here)
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.Lambda():
                made = Value(self._all_names(node, here))
                if not isinstance(node, ast.Lambda):
                    self._effect(made.base, here)
            case _:
                parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
                made = Value(self._every(parts, here))
        return made

    def _read_parts(self, node: ast.Dict | ast.Tuple | ast.Subscript, here: _Scope) -> Value:
        if isinstance(node, ast.Tuple):
            return Value(parts={i: self._read(each, here).every for i, each in enumerate(node.elts)})
        if isinstance(node, ast.Dict):
            keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
            values = [self._read(each, here).every for each in node.values]
            if len(keys) == len(values):
                return Value(parts=dict(zip(keys, values, strict=True)))
            others = self._every((each for each in node.keys if each is not None), here)
            return Value(others.union(*values))
        value = self._read(node.value, here)
        if isinstance(node.slice, ast.Constant) and node.slice.value in value.parts:
            return Value(value.base | value.parts[node.slice.value])
        return Value(value.every | self._read(node.slice, here).every)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, here: _Scope) -> Value:
        reads, inner = frozenset[Cell](), replace(here, bound=here.bound | _stored(node))
        for each in node.generators:
            source = self._read(each.iter, inner).every
            self._hand(inner, source, (self._cell(name, inner) for name in _stored(each.target)))
            reads = reads | source | self._every(each.ifs, inner)
        made_of = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        return Value(reads | self._every(made_of, inner))

    # Calls.

    def _call(self, node: ast.Call, here: _Scope) -> Value:
        called, given = node.func, _Given.of(node, lambda each: self._read(each, here))
        held = self._read(called.value, here).every if isinstance(called, ast.Attribute) else frozenset()
        if full := self._full_name(called, here):
            if full.endswith(".update_bn") and len(node.args) > 1:
                return self._refreshed(node.args[1], given.every, here)
            return self._made(node, given.every, here, is_pure=self._program.is_pure(full))
        if (found := self._function(called, here)) is None:
            return self._of_object(node, held, given.every, here)
        function = found[2]
        yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own_nodes(function))
        if yields or function in here.calls:
            return self._made(node, given.every | held, here, is_pure=False)
        own = held if function.name == last_name(called) else self._read(called, here).every
        return self._inlined(found, own, given, here)

    def _of_object(self, node: ast.Call, held: Cells, reads: Cells, here: _Scope) -> Value:
        """Return what a call makes of something that is no function of the user's."""
        called, program, name = node.func, self._program, last_name(node.func)
        is_module = name in program.modules or name in program.objects
        if is_module or not isinstance(called, ast.Attribute):
            is_builtin = not is_module and name not in here.bound and program.is_pure_builtin(name)
            is_pure = is_builtin or (name in program.modules and not program.draws)
            return self._made(node, reads | self._read(called, here).every, here, is_pure=is_pure)
        if name in _MODES:
            return Value(held)
        if name == "load_state_dict":
            return self._refreshed(called.value, reads, here)
        if changed_in_place(node) or (name[-1:] == "_" and name[-2:] != "__"):
            self._change(called.value, reads, here)
            return Value(held | reads)
        if name == "update_parameters" and last_name(called.value) in program.copies:
            held = frozenset()  # it leaves alone what update_bn sets
        is_pure = name not in program.methods and name in self._pure_methods
        return self._made(node, held | reads | (frozenset() if is_pure else _attribute(name)), here, is_pure=is_pure)

    def _made(self, node: ast.Call, reads: Cells, here: _Scope, *, is_pure: bool) -> Value:
        """Return what a call makes; one that is a statement of its own is there for an effect."""
        if is_pure and node is not self._alone:
            return Value(reads)
        given = [*node.args, *(each.value for each in node.keywords)]
        if any(isinstance(each, ast.Name) and each.id in {here.own, *self._program.objects} for each in given):
            reads |= {ANY}
        made = (here.number, f"made {self._next()}")
        self._add(here, reads, [made]).has_effect = True
        return Value(reads | {made})

    def _refreshed(self, held: ast.expr, reads: Cells, here: _Scope) -> Value:
        """Note that a module's state is replaced: of one that nothing else holds it is read where its name is."""
        name = last_name(held)
        if name not in self._program.copies:
            self._effect(reads | self._read(held, here).every, here)
            return Value()
        at = OF_OBJECTS if isinstance(held, ast.Attribute) else self._cell(name, here)[0]
        own = {(at, name), (at, f"{name}#")}
        self._add(here, reads - own, [(at, f"{name}#")]).names = (ast.unparse(held),)
        return Value()

    def _full_name(self, called: ast.expr, here: _Scope) -> str:
        """Return the full name of a library's function; "" of anything else."""
        parts = list[str]()
        while isinstance(called, ast.Attribute):
            parts.append(called.attr)
            called = called.value
        if not isinstance(called, ast.Name) or (called.id in here.bound and here.number != 0):
            return ""
        full = self._program.imports[here.file].get(called.id, "")
        own = full.rpartition(".")[2]
        if not full or (not parts and (own in self._program.functions or own in self._program.classes)):
            return ""
        return ".".join((full, *reversed(parts)))

    def _function(self, called: ast.expr, here: _Scope) -> _Found | None:
        """Return the user's function that a call runs, with its file and class."""
        program, name = self._program, last_name(called)
        if isinstance(called, ast.Attribute):
            holder = last_name(called.value)
            owners = {here.owner} if holder == here.own and here.own else program.objects.get(holder, set())
            if (found := program.method(name, owners)) is not None:
                return found
        elif len(program.functions.get(name, ())) == 1 and (name not in here.bound or here.number == 0):
            file, function = program.functions[name][0]
            return file, "", function
        for method in ("forward", "__call__"):
            if (found := program.method(method, program.objects.get(name, ()))) is not None:
                return found
        if not isinstance(called, ast.Attribute) or name in self._of_libraries:
            return None
        alike = program.methods.get(name, ()) if last_name(called.value) not in program.others else ()
        return alike[0] if len(alike) == 1 else None

    def _inlined(self, found: _Found, own: Cells, given: _Given, here: _Scope) -> Value:
        """Put a function's statements in the place of its call, and return its result."""
        file, owner, function = found
        self.functions.add(function)
        number = self._next()
        scope = scope_of(file, function, owner, number)
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if any(last_name(each) == "staticmethod" for each in function.decorator_list):
            scope = replace(scope, own="")
        elif owner and names:
            self._hand(here, own, [(number, names.pop(0))])
        values = dict(zip(names, given.args, strict=False)) | given.named
        for name in (*names, *(each.arg for each in function.args.kwonlyargs)):
            value = Value(given.every) if given.is_spread else values.get(name, Value())
            first = len(self.nodes)
            self._give((number, name), value, here)
            for node in self.nodes[first:]:
                node.is_real = False
        for extra in filter(None, (function.args.vararg, function.args.kwarg)):
            self._hand(here, given.every, [(number, extra.arg)])
        self._hand(here, frozenset(), [(number, "exit"), (number, "return")])
        needs = here.needs | {(number, "exit")}
        inner = replace(
            scope, chain=here.chain, branches=here.branches, needs=needs, calls=(*here.calls, function)
        )  # fmt: skip
        self._block(function.body, inner)
        return self._name("return", replace(inner, bound=inner.bound | {"return"}))


class _Given(NamedTuple):
    """The arguments of a call."""

    args: list[Value]
    named: dict[str, Value]
    is_spread: bool  # which parameter has which of them is not known

    @classmethod
    def of(cls, node: ast.Call, read: Callable[[ast.expr], Value]) -> _Given:
        """Return the arguments of a call, each read once."""
        spread = any(isinstance(each, ast.Starred) for each in node.args)
        spread = spread or any(each.arg is None for each in node.keywords)
        named = {each.arg or "**": read(each.value) for each in node.keywords}
        return cls([read(each) for each in node.args], named, spread)

    @property
    def every(self) -> Cells:
        """Return all cells that they are made of."""
        return frozenset[Cell]().union(*(each.every for each in (*self.args, *self.named.values())))


def _attribute(name: str) -> Cells:
    return frozenset({(OF_OBJECTS, name), (OF_OBJECTS, f"{name}#")})


def _part(cell: Cell, key: object) -> Cell:
    return cell[0], f"{cell[1]}[{key!r}]"


def _stored(node: ast.AST) -> frozenset[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return frozenset(each.id for each in names)

"""The body of a loop of the user's as one list of statements, with the functions that it calls in their place.

A statement gives values to cells and reads others: a variable of one call of a function, an entry of a dictionary or a
tuple with a constant key, an attribute of any object by its name, the state of a copied module. What is not known to
have no effect but its result has one.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from diagnose.model.assignments import assigned, changed_in_place
from diagnose.model.locations import RANDOM_DRAW

Cell: TypeAlias = tuple[int, str]  # number of the call of a function, and name; -1: an attribute of any object
Place: TypeAlias = tuple[str, int]  # file, first line of a statement
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Cells: TypeAlias = frozenset[Cell]

MAX_NODES = 20_000  # of a loop's body with what it calls
OF_OBJECTS = -1
ANY: Cell = (OF_OBJECTS, "*")  # all attributes
_PURE_PACKAGES = frozenset(
    {"collections", "copy", "einops", "functools", "itertools", "math", "numpy", "operator", "re", "scipy", "sklearn",
     "statistics", "string", "torch", "torchmetrics", "torchvision"}
)  # fmt: skip
_EFFECTS_OF_TORCH = (
    "autograd.", "cuda.", "distributed.", "random.", "save", "load", "manual_seed", "seed", "set_", "use_",
)  # fmt: skip
_PURE_BUILTINS = frozenset(dir(builtins)) - {
    "print", "open", "input", "next", "iter", "exec", "eval", "setattr", "delattr", "globals", "locals", "vars",
    "breakpoint", "compile", "__import__", "exit", "quit", "super",
}  # fmt: skip
_PURE_METHODS = frozenset(
    {"state_dict", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
     "children", "get_last_lr", "compute"}
)  # fmt: skip
_DRAWS = frozenset({"bernoulli", "multinomial", "normal", "dropout", "backward", "register_hook", "retain_grad"})
_MODES = frozenset({"train", "eval"})  # a module's: nothing is made
_COPIES = frozenset({"deepcopy", "AveragedModel"})
_FRESH_CALLS = frozenset(
    {"list", "dict", "set", "deque", "Counter", "defaultdict", "zeros", "ones", "empty", "full", "arange", "tensor",
     "zeros_like", "ones_like", "empty_like", "full_like", "clone", "copy", "deepcopy", "array", "eye", "linspace"}
)  # fmt: skip
_FRESH = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.BinOp, ast.Compare,
          ast.UnaryOp, ast.JoinedStr)  # fmt: skip
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


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


@dataclass(slots=True)
class Program:
    """The user's files as one program: functions, classes, and which names hold objects of which classes."""

    trees: Mapping[str, ast.Module]
    functions: dict[str, list[tuple[str, Function]]] = field(default_factory=dict)
    methods: dict[str, list[tuple[str, str, Function]]] = field(default_factory=dict)  # file and class of each
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    objects: dict[str, set[str]] = field(default_factory=dict)  # classes, by the last part of a name
    modules: set[str] = field(default_factory=set)  # names that hold modules of torch's
    copies: set[str] = field(default_factory=set)  # names that hold nothing but copies made for them
    imports: dict[str, dict[str, str]] = field(default_factory=dict)  # by file: full name of each imported one
    draws: bool = False  # modules draw at random or keep statistics of what they see
    reflects: bool = False  # names are looked up by their text

    def __post_init__(self) -> None:
        for file, tree in self.trees.items():
            self.imports[file] = dict(_imported(tree))
            for node in tree.body:
                if isinstance(node, Function):
                    self.functions.setdefault(node.name, []).append((file, node))
                elif isinstance(node, ast.ClassDef):
                    self.classes[node.name] = node
                    for each in node.body:
                        if isinstance(each, Function):
                            self.methods.setdefault(each.name, []).append((file, node.name, each))
        others = set[str]()
        for node in (node for tree in self.trees.values() for node in ast.walk(tree)):
            for target, value in assigned(node):
                name, made = last_name(target), _made_by(value)
                if made in self.classes:
                    self.objects.setdefault(name, set()).add(made)
                elif isinstance(value, ast.Call) and ast.unparse(value.func).startswith(("nn.", "torch.nn.")):
                    self.modules.add(name)
                (self.copies if made in _COPIES else others).add(name)
            if isinstance(node, ast.Name | ast.Attribute):
                self.draws |= any(part in last_name(node) for part in ("ropout", "BatchNorm", "InstanceNorm"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self.reflects |= node.func.id in ("getattr", "vars", "globals", "locals", "eval", "exec")
        self.copies -= others

    def method(self, name: str, owners: Iterable[str]) -> tuple[str, str, Function] | None:
        """Return the only method of a name that these classes have."""
        found = [one for one in self.methods.get(name, ()) if one[1] in set(owners)]
        return found[0] if len(found) == 1 else None

    def pure(self, name: str) -> bool:
        """Return whether a function of a library has no effect, by its full name."""
        package, _, rest = name.partition(".")
        last = name.rpartition(".")[2]
        return (
            package in _PURE_PACKAGES
            and not RANDOM_DRAW.search(f"{name}(")
            and not (package == "torch" and rest.startswith(_EFFECTS_OF_TORCH))
            and last not in _DRAWS
            and last[-1:] != "_"
        )


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a variable's or an attribute's name, "" of anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _made_by(value: ast.expr | None) -> str:
    """Return the name of what makes a value, through methods that return the object itself, such as `.eval()`."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call):
        value = value.func.value
    return last_name(value.func) if isinstance(value, ast.Call) else ""


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield each.asname or each.name.partition(".")[0], each.name if each.asname else each.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def own_nodes(body: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module without those of functions and classes in it."""
    left = list(ast.iter_child_nodes(body))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _SCOPES):
            left.extend(ast.iter_child_nodes(node))


def scope_of(program: Program, file: str, body: ast.AST, owner: str = "", number: int = 0) -> _Scope:
    """Return the scope of a function, or of a module."""
    names, values = set[str](), dict[str, list[ast.expr | None]]()
    for node in own_nodes(body):
        for target, value in assigned(node):
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and not isinstance(node, ast.AugAssign):
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

    def __init__(self, program: Program, scope: _Scope, loop: ast.For | ast.AsyncFor | ast.While) -> None:
        self.nodes: list[Node] = []
        self.functions: set[ast.AST] = set()  # whose statements are among them
        self._program, self._num, self._root = program, scope.number, scope.number
        self._keys: dict[Cell, set[object]] = {}
        tensor, array = (getattr(sys.modules.get(at), name, object) for at, name in (("torch", "Tensor"), ("numpy", "ndarray")))
        kinds = (tensor, array, dict, list, str, set, tuple)
        self._methods = {name for kind in kinds for name in dir(kind)} - _DRAWS | _PURE_METHODS
        if isinstance(loop, ast.While):
            self._add(replace(scope, chain=((scope.file, loop.lineno),)), self._read(loop.test, scope).every, has_effect=True)
        self._block(loop.body, scope)

    def _add(
        self, scope: _Scope, reads: Cells, gives: Iterable[Cell] = (), *, names: tuple[str, ...] = (),
        has_effect: bool = False, is_whole: bool = True, counts: bool = False, is_real: bool = True,
    ) -> Node:  # fmt: skip
        if len(self.nodes) >= MAX_NODES:
            raise TooManyError
        every = reads | scope.needs
        each = Node(scope.chain, scope.branches, every, frozenset(gives), has_effect, is_whole, counts, is_real, names)
        self.nodes.append(each)
        return each

    def _next(self) -> int:
        self._num += 1
        return self._num

    # Statements.

    def _block(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        for i, one in enumerate(body):
            here = replace(scope, chain=(*scope.chain, (scope.file, one.lineno)))
            rest = body[i + 1 :]
            if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Continue) and not one.orelse and rest:
                self._if(one, rest, here, scope)  # what follows is the other side
                return
            self._statement(one, here, scope)

    def _statement(self, one: ast.stmt, here: _Scope, scope: _Scope) -> None:
        match one:
            case ast.If():
                self._if(one, one.orelse, here, scope)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(one, here, scope)
            case ast.With() | ast.AsyncWith():
                for item in one.items:
                    value = self._read(item.context_expr, here)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value, here)
                self._block(one.body, scope)
            case ast.Try():
                for part in (one.body, *(each.body for each in one.handlers), one.orelse, one.finalbody):
                    self._block(part, scope)
            case ast.Assign(targets=targets, value=value):
                made = self._read(value, here)
                for target in targets:
                    self._assign(target, made, here)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._read(value, here), here)
            case ast.AugAssign(target=ast.Name() as target, value=value) if not scope.bound.isdisjoint({target.id}):
                reads = self._read(value, here).every | self._name(target.id, here).every
                counts = isinstance(value, ast.Constant)
                self._add(here, reads, [self._cell(target.id, here)], names=(target.id,), counts=counts)
            case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=own), attr=name) as target, value=value) if own == here.own:
                reads = self._read(value, here).every | self._read(target, here).every
                counts = isinstance(value, ast.Constant)
                self._add(here, reads, [(OF_OBJECTS, name)], is_whole=False, counts=counts)
            case ast.AugAssign(target=target, value=value):
                self._change(target, self._read(value, here).every, here)
            case ast.Expr(value=value):
                self._read(value, here)
            case ast.Return(value=value) if scope.number != self._root:
                made = self._read(value, here) if value is not None else Value()
                self._give((scope.number, "return"), made, here, ())
                self._add(here, frozenset(), [(scope.number, "exit")], is_whole=False, is_real=False)
            case ast.Break() | ast.Continue() if scope.loop is not None:
                self._add(here, frozenset(), [scope.loop], is_whole=False, is_real=False)
            case ast.Raise() | ast.Assert() if scope.number != self._root:
                self._add(here, self._all_names(one, here))
            case ast.Pass() | ast.AnnAssign() | ast.Import() | ast.ImportFrom():
                pass
            case _:  # what ends the loop's turn, functions, and statements that are rare
                self._add(here, self._all_names(one, here), has_effect=True)

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

    def _loop(self, one: ast.For | ast.AsyncFor | ast.While, here: _Scope, scope: _Scope) -> None:
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
                self._give(self._cell(name, here), value, here, (name,))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for i, each in enumerate(parts):
                    known = value.base | value.parts[i] if i in value.parts else value.every
                    self._assign(each, Value(known), here)
            case ast.Starred(value=inner):
                self._assign(inner, Value(value.every), here)
            case ast.Attribute(value=ast.Name(id=own), attr=name) if own == here.own:
                self._add(here, value.every, [(OF_OBJECTS, name)], names=(f"{own}.{name}",))
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)) if name in here.fresh:
                cell = self._cell(name, here)
                self._keys.setdefault(cell, set()).add(key)
                self._add(here, value.every, [_part(cell, key)], names=(name,))
            case _:
                self._change(target, value.every, here)

    def _give(
        self, cell: Cell, value: Value, here: _Scope, names: tuple[str, ...], *, is_real: bool = True
    ) -> None:  # fmt: skip
        self._keys.setdefault(cell, set()).update(value.parts)
        self._add(here, value.base, [cell], names=names, is_real=is_real)
        for key, cells in value.parts.items():
            of_part = tuple(f"{name}[{key!r}]" for name in names) if isinstance(key, str) else names
            self._add(here, cells, [_part(cell, key)], names=of_part, is_real=is_real)

    def _change(self, changed: ast.expr, reads: Cells, here: _Scope) -> None:
        """Note that an object changes: a variable's that nothing else can hold, else one that anything may read."""
        inner = changed
        while isinstance(inner, ast.Subscript):
            reads |= self._read(inner.slice, here).every
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in here.fresh:
            cell = self._cell(inner.id, here)
            self._add(here, reads | self._name(inner.id, here).every, [cell], is_whole=False, names=(inner.id,))
        else:
            self._add(here, reads | self._read(inner, here).every, has_effect=True)

    # Expressions.

    def _cell(self, name: str, here: _Scope) -> Cell:
        return (here.number if name in here.bound or here.number == self._root else 0), name

    def _name(self, name: str, here: _Scope) -> Value:
        cell = self._cell(name, here)
        base = frozenset({cell, (cell[0], f"{name}#")})
        return Value(base, {key: frozenset({_part(cell, key)}) for key in self._keys.get(cell, ())})

    def _all_names(self, node: ast.AST, here: _Scope) -> Cells:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        kept = (OF_OBJECTS, "")
        attributes = {(OF_OBJECTS, each.attr) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        return frozenset({kept, *attributes}).union(*(self._name(name, here).every for name in names))

    def _read(self, node: ast.expr, here: _Scope) -> Value:
        match node:
            case ast.Name(id=name):
                return self._name(name, here)
            case ast.Attribute(value=held, attr=name):
                return Value(self._read(held, here).every | {(OF_OBJECTS, name), (OF_OBJECTS, f"{name}#")})
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                pairs = zip(keys, values, strict=True)
                return Value(parts={key.value: self._read(each, here).every for key, each in pairs if isinstance(key, ast.Constant)})
            case ast.Tuple(elts=parts):
                return Value(parts={i: self._read(each, here).every for i, each in enumerate(parts)})
            case ast.Subscript(value=held, slice=ast.Constant(value=key)):
                value = self._read(held, here)
                return Value(value.base | value.parts[key]) if key in value.parts else Value(value.every)
            case ast.Call():
                return self._call(node, here)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, made := self._read(value, here), here)
                return made
            case ast.Lambda():
                return Value(self._all_names(node, here))
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return Value(self._add(here, self._all_names(node, here), has_effect=True).reads)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                reads = frozenset[Cell]()
                inner = replace(here, bound=here.bound | _stored(node))
                for each in node.generators:
                    source = self._read(each.iter, inner)
                    self._assign(each.target, Value(source.every), inner)
                    reads = reads.union(source.every, *(self._read(test, inner).every for test in each.ifs))
                made_of = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
                return Value(reads.union(*(self._read(each, inner).every for each in made_of)))
        each_part = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        return Value(frozenset[Cell]().union(*(self._read(each, here).every for each in each_part)))

    def _call(self, node: ast.Call, here: _Scope) -> Value:
        given = [self._read(each, here) for each in node.args]
        named = {each.arg: self._read(each.value, here) for each in node.keywords}
        reads = frozenset[Cell]().union(*(each.every for each in (*given, *named.values())))
        called, program = node.func, self._program
        held = self._read(called.value, here).every if isinstance(called, ast.Attribute) else frozenset()
        name, full = last_name(called), self._full_name(called, here)
        if name == "update_bn" and len(node.args) > 1:
            return self._refreshed(node.args[1], reads, here)
        if full:
            return Value(reads) if program.pure(full) else self._effect(node, reads, here)
        if (found := self._function(called, here)) is not None:
            file, owner, function = found
            if function not in here.calls and not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own_nodes(function)):
                own = held if isinstance(called, ast.Attribute) else self._read(called, here).every
                return self._inlined(node, (file, owner, function), own, given, named, here)
            return self._effect(node, reads | held, here)
        if name in program.modules or program.objects.get(name):
            own = self._read(called, here).every
            return Value(reads | own) if not program.draws and name in program.modules else self._effect(node, reads | own, here)
        if isinstance(called, ast.Name):
            made = program.classes.get(name)
            is_record = made is not None and not any(isinstance(each, Function) and each.name.startswith("__") for each in made.body)
            is_pure = is_record or (name in _PURE_BUILTINS and name not in here.bound)
            return Value(reads) if is_pure else self._effect(node, reads | self._name(name, here).every, here)
        if not isinstance(called, ast.Attribute):
            return self._effect(node, reads | self._read(called, here).every, here)
        if name == "load_state_dict":
            return self._refreshed(called.value, reads, here)
        if name == "update_parameters" and last_name(called.value) in program.copies:
            # It leaves alone what update_bn sets.
            return self._effect(node, reads, here)
        if name in _MODES or (name == "requires_grad_" and last_name(called.value) in program.objects):
            return Value(held)
        if changed_in_place(node) or (name[-1:] == "_" and name[-2:] != "__"):
            self._change(called.value, reads, here)
            return Value(held | reads)
        if name in self._methods and name not in program.methods:
            return Value(held | reads)
        return self._effect(node, reads | held, here)

    def _effect(self, node: ast.Call, reads: Cells, here: _Scope) -> Value:
        given = [*node.args, *(each.value for each in node.keywords)]
        if any(isinstance(each, ast.Name) and each.id in {here.own, *self._program.objects} for each in given):
            reads |= {ANY}
        made = (here.number, f"made {self._next()}")
        self._add(here, reads, [made], has_effect=True)
        return Value(reads | {made})

    def _refreshed(self, held: ast.expr, reads: Cells, here: _Scope) -> Value:
        """Note that a module's state is replaced: of one that nothing else holds it is read where its name is."""
        name = last_name(held)
        if name in self._program.copies:
            at = OF_OBJECTS if isinstance(held, ast.Attribute) else self._cell(name, here)[0]
            self._add(here, reads - {(at, name), (at, f"{name}#")}, [(at, f"{name}#")], names=(ast.unparse(held),))
            return Value()
        self._add(here, reads | self._read(held, here).every, has_effect=True)
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

    def _function(self, called: ast.expr, here: _Scope) -> tuple[str, str, Function] | None:
        """Return the user's function that a call runs, with its file and class."""
        program, name = self._program, last_name(called)
        if isinstance(called, ast.Attribute):
            holder = last_name(called.value)
            owners = {here.owner} if holder == here.own and here.own else program.objects.get(holder)
            if owners and (found := program.method(name, owners)) is not None:
                return found
        elif len(program.functions.get(name, ())) == 1 and (name not in here.bound or here.number == 0):
            file, function = program.functions[name][0]
            return file, "", function
        for method in ("forward", "__call__"):
            if name in program.objects and (found := program.method(method, program.objects[name])) is not None:
                return found
        all_of_name = program.methods.get(name, ()) if isinstance(called, ast.Attribute) else ()
        return all_of_name[0] if len(all_of_name) == 1 else None

    def _inlined(
        self, node: ast.Call, found: tuple[str, str, Function], own: Cells, given: list[Value],
        named: Mapping[str | None, Value], here: _Scope,
    ) -> Value:  # fmt: skip
        """Put a function's statements in the place of its call, and return its result."""
        file, owner, function = found
        self.functions.add(function)
        number = self._next()
        scope = scope_of(self._program, file, function, owner, number)
        is_static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if owner and not is_static and names:
            self._add(here, own, [(number, names[0])], is_real=False)
            names = names[1:]
        elif is_static:
            scope = replace(scope, own="")
        rest = frozenset[Cell]().union(*(each.every for each in given[len(names) :]))
        spread = any(isinstance(each, ast.Starred) for each in node.args) or None in named
        everything = frozenset[Cell]().union(*(each.every for each in (*given, *named.values())))
        values = dict(zip(names, given, strict=False)) | {str(key): value for key, value in named.items() if key}
        for name in sorted(scope.bound & {*names, *(each.arg for each in function.args.kwonlyargs)}):
            self._give((number, name), Value(everything) if spread else values.get(name, Value()), here, (), is_real=False)
        for extra in filter(None, (function.args.vararg, function.args.kwarg)):
            self._add(here, everything | rest, [(number, extra.arg)], is_real=False)
        self._add(here, frozenset(), [(number, "exit"), (number, "return")], is_real=False)
        inner = replace(
            scope, chain=here.chain, branches=here.branches, needs=here.needs | {(number, "exit")},
            calls=(*here.calls, function),
        )  # fmt: skip
        self._block(function.body, inner)
        return self._name("return", replace(inner, bound=inner.bound | {"return"}))


def _part(cell: Cell, key: object) -> Cell:
    return cell[0], f"{cell[1]}[{key!r}]"


def _stored(node: ast.AST) -> frozenset[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return frozenset(each.id for each in names)

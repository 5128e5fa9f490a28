"""What the names of a script are bound to, which functions it defines, and which of them a call runs.

Names are taken by their spelling, in the whole file: a name of two functions counts as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import libcst as cst
from libcst import matchers as m

__all__ = ["ScriptNames", "calls_in", "dotted"]

_OF_MODELS = m.Name("parameters") | m.Name("named_parameters") | m.Name("zero_grad") | m.Name("backward")


def dotted(node: cst.CSTNode | None) -> str:
    """Return ``a.b.c`` as it is written, "" for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (of := dotted(node.value)):
        return f"{of}.{node.attr.value}"
    return ""


def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls of an expression or a line in the order in which they run, those in a lambda included."""
    found: list[cst.Call] = []
    for child in node.children:
        if not isinstance(child, cst.FunctionDef | cst.ClassDef):
            found += calls_in(child)
    return [*found, node] if isinstance(node, cst.Call) else found


def _constructor(value: cst.BaseExpression | None) -> str:
    """Return what is called to make a value, without methods of it such as ``.to(device)``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and not dotted(value.func):
        value = value.func.value
    return dotted(value.func) if isinstance(value, cst.Call) else ""


class _Written(cst.CSTVisitor):
    """Notes what a file defines, binds and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[str, list[cst.FunctionDef]] = defaultdict(list)
        self.methods: dict[tuple[str, str], cst.FunctionDef] = {}
        self.classes: dict[str, list[cst.ClassDef]] = defaultdict(list)
        self.bound: dict[str, list[cst.BaseExpression | None]] = defaultdict(list)  # None: to what is not known
        self.trained: set[str] = set()  # what is asked for parameters or gradients: a model, an optimizer, a loss
        self._imports: dict[str, str] = {}
        self._owners: dict[cst.CSTNode, str] = {}  # the class around a method, or around a call
        self._times_written: dict[str, int] = defaultdict(int)
        self._times_called: dict[str, int] = defaultdict(int)
        self._calls: list[cst.Call] = []
        self._within: list[str] = []

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            whole = dotted(alias.name)
            first = whole.split(".")[0]
            self._imports[dotted(alias.asname.name) if alias.asname else first] = whole if alias.asname else first
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        of = "." * len(node.relative) + dotted(node.module)
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            name = dotted(alias.name)
            self._imports[dotted(alias.asname.name) if alias.asname else name] = f"{of}.{name}"
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.classes[node.name.value].append(node)
        self._within.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        del original_node
        self._within.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._times_written[node.name.value] -= 1  # in the definition itself
        if self._within and self._within[-1]:
            self.methods[self._within[-1], node.name.value] = node
            self._owners[node] = self._within[-1]
        else:
            self.functions[node.name.value].append(node)
        self._within.append("")

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        del original_node
        self._within.pop()

    def visit_Name(self, node: cst.Name) -> None:
        self._times_written[node.value] += 1

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._times_written[node.attr.value] -= 1
        self._times_written[f".{node.attr.value}"] += 1

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword:
            self._times_written[node.keyword.value] -= 1

    def visit_Call(self, node: cst.Call) -> None:
        self._calls.append(node)
        self._owners[node] = next((name for name in reversed(self._within) if name), "")
        if not isinstance(node.func, cst.Attribute):
            self._times_called[dotted(node.func)] += 1
            return
        self._times_called[f".{node.func.attr.value}"] += 1
        if m.matches(node.func.attr, _OF_MODELS):
            self.trained.add(dotted(node.func.value))

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._bind(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._bind(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._bind(node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        self._bind(node.target, node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._bind(node.target, node.iter)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname:
            self._bind(node.asname.name, node.item)

    def visit_MatchCase(self, node: cst.MatchCase) -> None:
        for name in m.findall(node.pattern, m.Name()):
            self._bind(cst.ensure_type(name, cst.Name), None)

    def _bind(self, target: cst.BaseExpression, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            values: Sequence[cst.BaseExpression | None] = [value] * len(target.elements)
            if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
                values = [element.value for element in value.elements]
            for element, one in zip(target.elements, values, strict=True):
                self._bind(element.value, one)
        elif isinstance(target, cst.Subscript):
            self._bind(target.value, value)  # what a list or a mapping holds
        elif name := dotted(target):
            self.bound[name].append(value)


class ScriptNames(_Written):
    """The names of one file; ``is_harmless_name`` judges the dotted name of a decorator."""

    def __init__(self, tree: cst.Module, is_harmless_name: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_harmless_name = is_harmless_name
        tree.visit(self)
        self.trained -= {"", "self"}
        self._bind_parameters()

    def _bind_parameters(self) -> None:
        """Bind parameters to what the calls of their function pass, to nothing known if others may call it."""
        every = self.every_function()
        names = {f: self._parameters(f) for f in every}
        for parameter in (p for function in every for p in names[function]):
            self.bound[parameter.name.value] += [parameter.default] if parameter.default is not None else []
        passed: dict[cst.FunctionDef, list[cst.Call]] = defaultdict(list)
        for call in self._calls:
            if (function := self.called(call)) is not None:
                passed[function].append(call)
        known = {function for function in every if self.is_known(function)}
        for function in every:
            places = [p.name.value for p in names[function] if p.star == ""]
            for parameter in names[function]:
                values = self._passed(parameter.name.value, places, passed[function])
                self.bound[parameter.name.value] += values if function in known and not parameter.star else [None]

    def _parameters(self, function: cst.FunctionDef) -> list[cst.Param]:
        params = function.params
        by_place = [*params.posonly_params, *params.params][function in self._owners :]  # without self
        others = (*params.kwonly_params, params.star_arg, params.star_kwarg)
        return [*by_place, *(p for p in others if isinstance(p, cst.Param))]

    @staticmethod
    def _passed(name: str, places: Sequence[str], calls: Sequence[cst.Call]) -> Iterator[cst.BaseExpression | None]:
        for call in calls:
            by_name = [arg.value for arg in call.args if arg.keyword and arg.keyword.value == name]
            by_place = [arg.value for arg in call.args if not arg.keyword]
            if any(arg.star for arg in call.args):
                yield None
            elif by_name or places.index(name) < len(by_place):  # else its default
                yield by_name[0] if by_name else by_place[places.index(name)]

    def imported(self, node: cst.CSTNode) -> str:
        """Return the whole dotted name of something imported, "" for anything else."""
        first, _, rest = dotted(node).partition(".")
        return ".".join(filter(None, (self._imports[first], rest))) if first in self._imports else ""

    def called(self, call: cst.Call) -> cst.FunctionDef | None:
        """Return the function of this file that a call runs, None if it is another's or not known."""
        func = call.func
        if isinstance(func, cst.Name):
            name = func.value
            if name in self.bound or name in self._imports:
                return None
            if len(self.functions.get(name, ())) == 1 and name not in self.classes:
                return self._usable(self.functions[name][0])
            return self._method(name, "__init__")
        if not isinstance(func, cst.Attribute):
            return None
        of, method = dotted(func.value), func.attr.value
        made = self.bound.get(of, ())
        owners = {_constructor(value) for value in made}
        if of == "self":
            owners = {self._owners[call]}
        owner = owners.pop() if len(owners) == 1 else ""
        replaced = any(name == method and self._is_below(below, owner) for below, name in self.methods)
        return None if replaced else self._method(owner, method)

    def _method(self, owner: str, name: str) -> cst.FunctionDef | None:
        while len(self.classes.get(owner, ())) == 1:
            if (owner, name) in self.methods:
                return self._usable(self.methods[owner, name])
            bases = self.bases(owner)
            owner = bases[0] if len(bases) == 1 and bases[0] != owner else ""
        return None

    def bases(self, owner: str) -> list[str]:
        """Return the bases of a class of this file as they are written."""
        return [dotted(base.value) for base in self.classes[owner][-1].bases] if owner in self.classes else []

    def _is_below(self, name: str, owner: str) -> bool:
        bases = [base for base in self.bases(name) if base != name]
        return owner in bases or any(self._is_below(base, owner) for base in bases)

    def _usable(self, function: cst.FunctionDef) -> cst.FunctionDef | None:
        """Return the function unless a decorator may run more than it, or it runs later."""
        return function if self._has_plain_decorators(function) and function.asynchronous is None else None

    def _has_plain_decorators(self, function: cst.FunctionDef) -> bool:
        named = [d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator for d in function.decorators]
        plain = ("staticmethod", "classmethod", "property")
        return all(dotted(name) in plain or self._is_harmless_name(self.imported(name)) for name in named)

    def is_known(self, function: cst.FunctionDef) -> bool:
        """Return whether every call of a function is one that `called` finds."""
        calls = sum(self.called(call) is function for call in self._calls)
        return calls > 0 and (function.name.value == "__init__" or calls == self._times_written[self._key(function)])

    def is_handed_on(self, function: cst.FunctionDef) -> bool:
        """Return whether others may call a function at any time: it is passed to them, or Python calls it by itself."""
        name, key = function.name.value, self._key(function)
        is_passed = self._times_written[key] > self._times_called[key]
        return is_passed or not self._has_plain_decorators(function) or (name.startswith("__") and name != "__init__")

    def _key(self, function: cst.FunctionDef) -> str:
        return f".{function.name.value}" if function in self._owners else function.name.value

    def every_function(self) -> list[cst.FunctionDef]:
        """Return the functions and methods of the file."""
        return [*(f for same in self.functions.values() for f in same), *self.methods.values()]

    def owner(self, function: cst.FunctionDef) -> str:
        """Return the class of a method, "" of a function."""
        return self._owners.get(function, "")

"""What the names of a script are bound to, which of its functions a call runs, and which calls cannot see a file.

Names are taken by their spelling, in the whole file: a name of two functions counts as one. A call that cannot be
judged is not harmless.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

__all__ = ["ScriptCalls", "calls_in"]

_COUNTING = {
    "abs", "bool", "divmod", "float", "format", "hash", "id", "int", "isinstance", "len", "pow", "print", "range",
    "repr", "round", "str",
}  # fmt: skip
_COLLECTING = {
    "all", "any", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "max", "min", "next",
    "reversed", "set", "slice", "sorted", "sum", "tuple", "zip",
}  # fmt: skip
_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
_MODULES = {
    "collections", "contextlib", "copy", "datetime", "functools", "gc", "itertools", "logging", "math", "numpy",
    "operator", "random", "statistics", "time", "torch", "torchmetrics", "tqdm", "warnings",
}  # fmt: skip
"""Modules whose functions compute, count and log, but for those with a name in `_USES_FILES` or `_OF_RANKS`."""

_FURTHER = {
    "io.BytesIO", "io.StringIO", "mlflow.log_metric", "mlflow.log_metrics", "os.environ.get", "os.getenv",
    "os.getpid", "os.path.basename", "os.path.dirname", "os.path.join", "os.path.split", "os.path.splitext",
    "pathlib.Path", "sys.exit", "sys.stdout.flush", "sys.stdout.write", "wandb.log",
}  # fmt: skip
_USES_FILES = re.compile(
    r"(^|_)(save|load|open|write|read|dump|export|package|push|upload|spawn)|file|hub|memmap|txt|pretrained"
)
_OF_RANKS = re.compile(r"torch\.(multiprocessing|distributed\.(?!all_|reduce|get_|is_))")
"""What other processes may wait for before they use a file; exchanges of numbers are none."""

_OF_TENSORS = {
    "add_", "argmax", "backward", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "dim", "div_",
    "double", "eq", "flatten", "float", "half", "item", "long", "mean", "mul_", "numel", "numpy", "permute",
    "reshape", "size", "squeeze", "sum", "t", "to", "tolist", "transpose", "unsqueeze", "view", "zero_grad",
}  # fmt: skip
"""Methods that are a tensor's, a module's or an optimizer's, on whatever they are called."""

_WORK = {"backward", "cuda", "step", "to"}
_OF_MODELS = {"parameters", "named_parameters", "zero_grad", "backward"}
_SERVES_LOADER_OR_MODEL = re.compile(r"Dataset|Sampler|Module|Function$")
"""Bases of classes whose methods a loader or a model calls."""

_OPENED = m.Call(func=m.Name("open") | m.Name("BytesIO") | m.Attribute(attr=m.Name("open") | m.Name("BytesIO")))
_RUN_THEIR_FIRST = {"compile", "filter", "iter", "map", "partial", "reduce", "starmap", "vmap", "wraps"}
_PARTS: Mapping[type, tuple[str, ...]] = {
    cst.Attribute: ("value",), cst.Subscript: ("value",), cst.UnaryOperation: ("expression",),
    cst.BinaryOperation: ("left", "right"), cst.BooleanOperation: ("left", "right"), cst.IfExp: ("body", "orelse"),
    cst.DictComp: ("value",), cst.ListComp: ("elt",), cst.SetComp: ("elt",), cst.GeneratorExp: ("elt",),
}  # fmt: skip
"""Of what a value is, or what it holds, is plain if it is."""

_BOUND_TO: Mapping[type, str] = {
    cst.AugAssign: "value", cst.AnnAssign: "value", cst.NamedExpr: "value", cst.For: "iter", cst.CompFor: "iter",
}  # fmt: skip
"""What the target of a statement is bound to."""


def _dotted(node: cst.CSTNode | None) -> str:
    """Return ``a.b.c`` as it is written, "" for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (of := _dotted(node.value)):
        return f"{of}.{node.attr.value}"
    return ""


def _key(node: cst.CSTNode) -> str:
    return f".{node.attr.value}" if isinstance(node, cst.Attribute) else _dotted(node)


def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls of an expression or a line in the order in which they run, those in a lambda included."""
    inner = [child for child in node.children if not isinstance(child, cst.FunctionDef | cst.ClassDef)]
    found = [call for child in inner for call in calls_in(child)]
    return [*found, node] if isinstance(node, cst.Call) else found


def _constructor(value: cst.BaseExpression | None) -> str:
    """Return what is called to make a value, without methods of it such as ``.to(device)``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and not _dotted(value.func):
        value = value.func.value
    return _dotted(value.func) if isinstance(value, cst.Call) else ""


def _is_harmless_name(whole: str) -> bool:
    parts = whole.split(".")
    is_known = parts[0] in _MODULES and not _OF_RANKS.match(whole) and not any(map(_USES_FILES.search, parts))
    return is_known or whole in _FURTHER


class ScriptCalls:
    """The functions, values and calls of one file; a value is plain if none of its methods can see a file."""

    def __init__(self, tree: cst.Module) -> None:
        self.functions: dict[str, list[cst.FunctionDef]] = defaultdict(list)
        self._methods: dict[tuple[str, str], cst.FunctionDef] = {}
        self._classes: dict[str, list[cst.ClassDef]] = defaultdict(list)
        self._bound: dict[str, list[cst.BaseExpression | None]] = defaultdict(list)  # None: to what is not known
        self._trained: set[str] = set()  # what is asked for parameters or gradients: a model, an optimizer, a loss
        self._imports: dict[str, str] = {}
        self._owners: dict[cst.CSTNode, str] = {}  # the class around a method, or around a call
        self._written: Counter[str] = Counter()  # how often a name is written, an attribute with a dot before it
        self._called: Counter[str] = Counter()
        self._calls: list[cst.Call] = []
        self._read(tree, "", is_method=False)
        self._trained -= {"", "self"}
        self.every_function = [*(f for same in self.functions.values() for f in same), *self._methods.values()]
        self._bind_parameters()
        self._opaque: set[str] = set()  # names that are bound to what is not plain
        self._made: dict[cst.FunctionDef, bool] = {}  # functions: whether all that they return is plain
        self._find_opaque()

    def _read(self, node: cst.CSTNode, owner: str, *, is_method: bool) -> None:
        """Note what a node and those in it define, bind and call; ``owner`` is the class around it."""
        if isinstance(node, cst.Import | cst.ImportFrom):
            self._import(node)
            return
        self._count(node, owner)
        self._bind_of(node)
        if isinstance(node, cst.ClassDef):
            owner, is_method = node.name.value, True
            self._classes[owner].append(node)
        elif isinstance(node, cst.FunctionDef):
            if is_method:
                self._methods[owner, node.name.value] = node
                self._owners[node] = owner
            else:
                self.functions[node.name.value].append(node)
            is_method = False
        for child in node.children:
            self._read(child, owner, is_method=is_method)

    def _count(self, node: cst.CSTNode, owner: str) -> None:
        """Count names where they are used, and calls by them."""
        if isinstance(node, cst.Call):
            self._calls.append(node)
            self._owners[node] = owner
            self._called[_key(node.func)] += 1
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _OF_MODELS:
                self._trained.add(_dotted(node.func.value))
        elif isinstance(node, cst.Name | cst.Attribute):
            self._written[_key(node)] += 1
        # A Name that is no use of this name: the end of an attribute, a keyword, what a definition is called.
        if isinstance(node, cst.Attribute):
            self._written[node.attr.value] -= 1
        elif isinstance(node, cst.Arg) and node.keyword:
            self._written[node.keyword.value] -= 1
        elif isinstance(node, cst.FunctionDef):
            self._written[node.name.value] -= 1

    def _import(self, node: cst.Import | cst.ImportFrom) -> None:
        of = "" if isinstance(node, cst.Import) else "." * len(node.relative) + _dotted(node.module) + "."
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            whole = of + _dotted(alias.name)
            if alias.asname:
                self._imports[_dotted(alias.asname.name)] = whole
            else:
                first = _dotted(alias.name).split(".")[0]
                self._imports[first] = of + first

    def _bind_of(self, node: Any) -> None:  # of any type
        if isinstance(node, cst.Assign):
            for one in node.targets:
                self._bind(one.target, node.value)
        elif isinstance(node, cst.WithItem) and node.asname:
            self._bind(node.asname.name, node.item)
        elif isinstance(node, cst.MatchCase):
            for name in m.findall(node.pattern, m.Name()):
                self._bind(cst.ensure_type(name, cst.Name), None)
        elif type(node) in _BOUND_TO and (value := getattr(node, _BOUND_TO[type(node)])) is not None:
            self._bind(node.target, value)

    def _bind(self, target: cst.BaseExpression, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            values: Sequence[cst.BaseExpression | None] = [value] * len(target.elements)
            if isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(target.elements):
                values = [element.value for element in value.elements]
            for element, one in zip(target.elements, values, strict=True):
                self._bind(element.value, one)
        elif isinstance(target, cst.Subscript):
            self._bind(target.value, value)  # what a list or a mapping holds
        elif name := _dotted(target):
            self._bound[name].append(value)

    def _bind_parameters(self) -> None:
        """Bind parameters to what the calls of their function pass, to nothing known if others may call it."""
        passed: dict[cst.FunctionDef, list[cst.Call]] = defaultdict(list)
        names: dict[cst.FunctionDef, list[cst.Param]] = {}
        for function in self.every_function:
            params = function.params
            by_place = [*params.posonly_params, *params.params][function in self._owners :]  # without self
            others = (*params.kwonly_params, params.star_arg, params.star_kwarg)
            names[function] = [*by_place, *(p for p in others if isinstance(p, cst.Param))]
            for parameter in names[function]:
                self._bound[parameter.name.value] += [parameter.default] if parameter.default is not None else []
        for call in self._calls:
            if (called := self.called(call)) is not None:
                passed[called].append(call)
        known = {function for function in self.every_function if self.is_known(function)}
        for function, parameters in names.items():
            places = [p.name.value for p in parameters if p.star == ""]
            for p in parameters:
                values = _passed(p.name.value, places, passed[function])
                self._bound[p.name.value] += values if function in known and not p.star else [None]

    def _find_opaque(self) -> None:
        """Start from nothing opaque, and go on until no name or function turns out to be."""
        returns = {f: m.findall(f, m.Return()) for f in self.every_function}
        self._made = dict.fromkeys(returns, True)
        before = None
        while before != len(self._opaque) - sum(self._made.values()):
            before = len(self._opaque) - sum(self._made.values())
            self._opaque |= {key for key, values in self._bound.items() if not all(map(self.is_plain, values))}
            for function, found in returns.items():
                values = [cst.ensure_type(one, cst.Return).value for one in found]
                self._made[function] &= all(value is None or self.is_plain(value) for value in values)

    def _imported(self, node: cst.CSTNode) -> str:
        """Return the whole dotted name of something imported, "" for anything else."""
        first, dot, rest = _dotted(node).partition(".")
        return self._imports[first] + dot + rest if first in self._imports else ""

    def called(self, call: cst.Call) -> cst.FunctionDef | None:
        """Return the function of this file that a call runs, None if it is another's or not known."""
        func = call.func
        if isinstance(func, cst.Name):
            name = func.value
            if name in self._bound or name in self._imports:
                return None
            if len(self.functions.get(name, ())) == 1 and name not in self._classes:
                return self._usable(self.functions[name][0])
            return self._method(name, "__init__")
        if not isinstance(func, cst.Attribute):
            return None
        of, method = _dotted(func.value), func.attr.value
        owners = {self._owners[call]} if of == "self" else set(map(_constructor, self._bound.get(of, ())))
        owner = owners.pop() if len(owners) == 1 else ""
        replaced = any(name == method and self._is_below(below, owner) for below, name in self._methods)
        return None if replaced else self._method(owner, method)

    def _method(self, owner: str, name: str) -> cst.FunctionDef | None:
        while len(self._classes.get(owner, ())) == 1:
            if (owner, name) in self._methods:
                return self._usable(self._methods[owner, name])
            bases = self._bases(owner)
            owner = bases[0] if len(bases) == 1 and bases[0] != owner else ""
        return None

    def _bases(self, owner: str) -> list[str]:
        """Return the bases of a class of this file as they are written."""
        return [_dotted(base.value) for base in self._classes[owner][-1].bases] if owner in self._classes else []

    def _is_below(self, name: str, owner: str) -> bool:
        bases = [base for base in self._bases(name) if base != name]
        return owner in bases or any(self._is_below(base, owner) for base in bases)

    def _usable(self, function: cst.FunctionDef) -> cst.FunctionDef | None:
        """Return the function unless a decorator may run more than it, or it runs later."""
        return function if self._has_plain_decorators(function) and function.asynchronous is None else None

    def _has_plain_decorators(self, function: cst.FunctionDef) -> bool:
        named = [d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator for d in function.decorators]
        plain = ("staticmethod", "classmethod", "property")
        return all(_dotted(name) in plain or _is_harmless_name(self._imported(name)) for name in named)

    def _function_key(self, function: cst.FunctionDef) -> str:
        return f".{function.name.value}" if function in self._owners else function.name.value

    def is_known(self, function: cst.FunctionDef) -> bool:
        """Return whether every call of a function is one that `called` finds."""
        calls = sum(self.called(call) is function for call in self._calls)
        is_every = function.name.value == "__init__" or calls == self._written[self._function_key(function)]
        return calls > 0 and is_every

    def is_handed_on(self, function: cst.FunctionDef) -> bool:
        """Return whether others may call a function at any time: it is passed to them, or Python calls it by itself."""
        name, key = function.name.value, self._function_key(function)
        is_passed = self._written[key] > self._called[key]
        return is_passed or not self._has_plain_decorators(function) or (name.startswith("__") and name != "__init__")

    def serves_loader_or_model(self, function: cst.FunctionDef) -> bool:
        """Return whether a loader or a model calls a method: neither a batch nor a forward reads checkpoints."""
        return any(map(_SERVES_LOADER_OR_MODEL.search, self._bases(self._owners.get(function, ""))))

    def is_harmless(self, call: cst.Call) -> bool:
        """Return whether a call of what this file does not define cannot see a file."""
        func = call.func
        name, whole = _dotted(func), self._imported(func)
        is_builtin = isinstance(func, cst.Name) and not whole and not self._is_own(name)
        if is_builtin and name in _COUNTING:
            return True
        if self._may_run_others(call):
            return False
        if whole or is_builtin:
            return _is_harmless_name(whole) if whole else name in _COLLECTING | _ERRORS
        if name in self._bound or not isinstance(func, cst.Attribute):
            is_simple_class = name in self._classes and not self._bases(name)
            return is_simple_class or self.is_plain(func)
        method = func.attr.value
        # A method of a plain value that no class of this file adds.
        is_added = any(method == each and self._bases(owner) not in ([], ["object"]) for owner, each in self._methods)
        is_of_library = not is_added and not _USES_FILES.search(method)
        return method in _OF_TENSORS or (is_of_library and self.is_plain(func.value))

    def computes(self, call: cst.Call) -> bool:
        """Return whether a harmless call is work next to which a file can be written: torch's, or a model's."""
        if whole := self._imported(call.func):
            return whole.startswith("torch.")
        is_work = isinstance(call.func, cst.Attribute) and call.func.attr.value in _WORK
        return is_work or _dotted(call.func) in self._bound

    def is_buffer(self, node: cst.BaseExpression) -> bool:
        """Return whether a value is an open file or a buffer."""
        made = self._bound.get(_dotted(node), ()) if _dotted(node) else (node,)
        return bool(made) and all(value is not None and m.matches(value, _OPENED) for value in made)

    def is_plain(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a value is a number, a text, or torch's, or holds only such."""
        if (key := _dotted(node)) in self._trained or key in ("True", "False", "None"):
            return True
        if key in self._bound:
            return key not in self._opaque
        if isinstance(node, cst.Call):
            return self._makes_plain(node)
        if isinstance(node, cst.List | cst.Tuple | cst.Set | cst.Dict):
            return all(self.is_plain(getattr(element, "value", None)) for element in node.elements)
        if type(node) in _PARTS:
            return all(self.is_plain(getattr(node, part)) for part in _PARTS[type(node)])
        return isinstance(node, cst.BaseNumber | cst.BaseString | cst.Comparison)

    def _makes_plain(self, call: cst.Call) -> bool:
        if self._may_run_others(call):
            return False
        name, whole = _dotted(call.func), self._imported(call.func)
        function = self.called(call)
        if function is not None and function.name.value != "__init__":
            return self._made[function]
        takes_plain = all(self.is_plain(arg.value) for arg in call.args)
        if whole:
            return _is_harmless_name(whole) and (whole.startswith("torch.") or takes_plain)
        if name in self._classes:
            return any("Module" in base for base in self._bases(name))
        if isinstance(call.func, cst.Name) and not self._is_own(name):
            return name in _COUNTING or (name in _COLLECTING and takes_plain)
        return self.is_plain(call.func.value if isinstance(call.func, cst.Attribute) else call.func)

    def _is_own(self, name: str) -> bool:
        return name in self._bound or name in self.functions or name in self._classes

    def _may_run_others(self, call: cst.Call) -> bool:
        """Return whether a call may run a function that it is given, and that is not known to be harmless.

        What a lambda calls is judged as if it stood in the place of the lambda.
        """
        runs_first = _dotted(call.func).rpartition(".")[2] in _RUN_THEIR_FIRST
        for i, arg in enumerate(call.args):
            name, whole = _dotted(arg.value), self._imported(arg.value)
            if whole:
                is_known = _is_harmless_name(whole)
            elif (i == 0 and runs_first) or (arg.keyword and arg.keyword.value == "key"):
                is_known = isinstance(arg.value, cst.Lambda) or (hasattr(builtins, name) and not self._is_own(name))
            else:
                is_method = any(name.endswith(f".{method}") for _, method in self._methods)
                is_known = name not in self.functions and not is_method
            if not is_known:
                return True
        return False


def _passed(name: str, places: Sequence[str], calls: Sequence[cst.Call]) -> Iterator[cst.BaseExpression | None]:
    """Yield what calls pass for a parameter; ``places`` are those that can be passed by place."""
    for call in calls:
        by_name = [arg.value for arg in call.args if arg.keyword and arg.keyword.value == name]
        by_place = [arg.value for arg in call.args if not arg.keyword]
        if any(arg.star for arg in call.args):
            yield None
        elif by_name or places.index(name) < len(by_place):  # else its default
            yield by_name[0] if by_name else by_place[places.index(name)]

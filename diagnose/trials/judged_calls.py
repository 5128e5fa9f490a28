"""Which calls of a script cannot see a file. A call that cannot be judged is not harmless."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping

import libcst as cst
from libcst import matchers as m

from diagnose.trials.script_names import ScriptNames, dotted

__all__ = ["Judge"]

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


class Judge:
    """Judges the calls of one script; a value is plain if none of its methods can see a file."""

    def __init__(self, tree: cst.Module) -> None:
        self.names = ScriptNames(tree, _is_harmless_name)
        self._opaque: set[str] = set()  # names that are bound to what is not plain
        self._made: dict[cst.FunctionDef, bool] = {}  # functions: whether all that they return is plain
        self._find_opaque()

    def _find_opaque(self) -> None:
        """Start from nothing opaque, and go on until no name or function turns out to be."""
        names = self.names
        returns = {f: m.findall(f, m.Return()) for f in names.every_function()}
        self._made = dict.fromkeys(returns, True)
        before = None
        while before != len(self._opaque) - sum(self._made.values()):
            before = len(self._opaque) - sum(self._made.values())
            self._opaque |= {key for key, values in names.bound.items() if not all(map(self.is_plain, values))}
            for function, found in returns.items():
                values = [cst.ensure_type(one, cst.Return).value for one in found]
                self._made[function] &= all(value is None or self.is_plain(value) for value in values)

    def is_harmless(self, call: cst.Call) -> bool:
        """Return whether a call of what this file does not define cannot see a file."""
        func, names = call.func, self.names
        name, whole = dotted(func), names.imported(func)
        is_builtin = isinstance(func, cst.Name) and not whole and not self._is_own(name)
        if is_builtin and name in _COUNTING:
            return True
        if self._may_run_others(call):
            return False
        if whole or is_builtin:
            return _is_harmless_name(whole) if whole else name in _COLLECTING | _ERRORS
        if name in names.bound or not isinstance(func, cst.Attribute):
            is_simple_class = name in names.classes and not names.bases(name)
            return is_simple_class or self.is_plain(func)
        return func.attr.value in _OF_TENSORS or (self.is_plain(func.value) and self._is_of_library(func.attr.value))

    def _is_of_library(self, method: str) -> bool:
        """Return whether a method of a plain value is no method that a class of this file adds, and uses no files."""
        names = self.names
        is_added = any(method == name and names.bases(owner) not in ([], ["object"]) for owner, name in names.methods)
        return not is_added and not _USES_FILES.search(method)

    def computes(self, call: cst.Call) -> bool:
        """Return whether a harmless call is work next to which a file can be written: torch's, or a model's."""
        if whole := self.names.imported(call.func):
            return whole.startswith("torch.")
        if isinstance(call.func, cst.Attribute):
            return call.func.attr.value in _WORK or dotted(call.func) in self.names.bound
        return dotted(call.func) in self.names.bound

    def serves_loader_or_model(self, function: cst.FunctionDef) -> bool:
        """Return whether a loader or a model calls a method: neither a batch nor a forward reads checkpoints."""
        return any(map(_SERVES_LOADER_OR_MODEL.search, self.names.bases(self.names.owner(function))))

    def is_buffer(self, node: cst.BaseExpression) -> bool:
        """Return whether a value is an open file or a buffer."""
        made = self.names.bound.get(dotted(node), ()) if dotted(node) else (node,)
        return bool(made) and all(value is not None and m.matches(value, _OPENED) for value in made)

    def is_plain(self, node: cst.BaseExpression | None) -> bool:
        """Return whether a value is a number, a text, or torch's, or holds only such."""
        if (key := dotted(node)) in self.names.trained or key in ("True", "False", "None"):
            return True
        if key in self.names.bound:
            return key not in self._opaque
        if isinstance(node, cst.Call):
            return self._makes_plain(node)
        if isinstance(node, cst.List | cst.Tuple | cst.Set | cst.Dict):
            return all(self.is_plain(getattr(element, "value", None)) for element in node.elements)
        parts = _PARTS.get(type(node))
        if parts is None:
            return isinstance(node, cst.BaseNumber | cst.BaseString | cst.Comparison)
        return all(self.is_plain(getattr(node, part)) for part in parts)

    def _makes_plain(self, call: cst.Call) -> bool:
        if self._may_run_others(call):
            return False
        name, whole = dotted(call.func), self.names.imported(call.func)
        function = self.names.called(call)
        if function is not None and function.name.value != "__init__":
            return self._made[function]
        takes_plain = all(self.is_plain(arg.value) for arg in call.args)
        if whole:
            return _is_harmless_name(whole) and (whole.startswith("torch.") or takes_plain)
        if name in self.names.classes:
            return any("Module" in base for base in self.names.bases(name))
        if isinstance(call.func, cst.Name) and not self._is_own(name):
            return name in _COUNTING or (name in _COLLECTING and takes_plain)
        return self.is_plain(call.func.value if isinstance(call.func, cst.Attribute) else call.func)

    def _is_own(self, name: str) -> bool:
        return name in self.names.bound or name in self.names.functions or name in self.names.classes

    def _may_run_others(self, call: cst.Call) -> bool:
        """Return whether a call may run a function that it is given, and that is not known to be harmless.

        What a lambda calls is judged as if it stood in the place of the lambda.
        """
        runs_first = dotted(call.func).rpartition(".")[2] in _RUN_THEIR_FIRST
        for i, arg in enumerate(call.args):
            name, whole = dotted(arg.value), self.names.imported(arg.value)
            if whole:
                is_known = _is_harmless_name(whole)
            elif (i == 0 and runs_first) or (arg.keyword and arg.keyword.value == "key"):
                is_known = isinstance(arg.value, cst.Lambda) or (hasattr(builtins, name) and not self._is_own(name))
            else:
                is_method = any(name.endswith(f".{method}") for _, method in self.names.methods)
                is_known = name not in self.names.functions and not is_method
            if not is_known:
                return True
        return False


def _is_harmless_name(whole: str) -> bool:
    parts = whole.split(".")
    if whole in _FURTHER:
        return True
    return parts[0] in _MODULES and not _OF_RANKS.match(whole) and not any(map(_USES_FILES.search, parts))

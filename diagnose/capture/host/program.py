"""The user's files as one program: its functions and classes, what names hold, and which calls have no effect."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from diagnose.model.assignments import assigned
from diagnose.model.locations import RANDOM_DRAW

__all__ = ["SCOPES", "Function", "Program", "last_name", "own_nodes"]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
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
_COPIES = frozenset({"deepcopy", "AveragedModel"})


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
    others: set[str] = field(default_factory=set)  # names that hold what libraries make
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
                    for each in (each for each in node.body if isinstance(each, Function)):
                        self.methods.setdefault(each.name, []).append((file, node.name, each))
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        made = [(last_name(one.target), one.value) for node in nodes for one in assigned(node)]
        for name, value in made:
            self._add_object(name, value)
        self.copies = {name for name, value in made if _made_by(value) in _COPIES}
        self.copies -= {name for name, value in made if _made_by(value) not in _COPIES}
        names = {last_name(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        self.draws = any(part in name for name in names for part in ("ropout", "BatchNorm", "InstanceNorm"))
        self.reflects = not names.isdisjoint(("getattr", "vars", "globals", "locals", "exec"))

    def _add_object(self, name: str, value: ast.expr | None) -> None:
        made = _made_by(value)
        if made in self.classes:
            self.objects.setdefault(name, set()).add(made)
        elif isinstance(value, ast.Call):
            if ast.unparse(value.func).startswith(("nn.", "torch.nn.")):
                self.modules.add(name)
            if made not in self.functions:
                self.others.add(name)

    def method(self, name: str, owners: Iterable[str]) -> tuple[str, str, Function] | None:
        """Return the only method of a name that these classes have."""
        found = [one for one in self.methods.get(name, ()) if one[1] in set(owners)]
        return found[0] if len(found) == 1 else None

    def is_pure(self, name: str) -> bool:
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

    def is_pure_builtin(self, name: str) -> bool:
        """Return whether a function of Python's own has no effect, or a class of the user's that only holds values."""
        made = self.classes.get(name)
        if made is not None:
            return not any(isinstance(each, Function) and each.name.startswith("__") for each in made.body)
        return name in _PURE_BUILTINS


def methods_of_values() -> frozenset[str]:
    """Return the methods of tensors, arrays and Python's own values, and of modules those that only read."""
    tensor, array = (
        getattr(sys.modules.get(at), name, object) for at, name in (("torch", "Tensor"), ("numpy", "ndarray"))
    )
    found = {name for kind in (tensor, array, dict, list, str, set, tuple) for name in dir(kind)}
    return frozenset(found - _DRAWS | _PURE_METHODS)


def methods_of_libraries() -> frozenset[str]:
    """Return the names of methods that an object may have that is not the user's."""
    return methods_of_values() | _DRAWS | {name for kind in _classes_of_torch() for name in dir(kind)}


def _classes_of_torch() -> Iterator[type]:
    torch = sys.modules.get("torch")
    for name in ("nn.Module", "optim.Optimizer", "optim.lr_scheduler.LRScheduler", "utils.data.DataLoader"):
        found: object = torch
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type):
            yield found


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a variable's or an attribute's name, "" of anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _made_by(value: ast.expr | None) -> str:
    """Return the name of what makes a value, through methods that return the object itself, such as `.eval()`."""
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call)
    ):
        value = value.func.value
    return last_name(value.func) if isinstance(value, ast.Call) else ""


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield (
                    each.asname or each.name.partition(".")[0],
                    each.name if each.asname else each.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def own_nodes(body: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module without those of functions and classes in it."""
    left = list(ast.iter_child_nodes(body))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, SCOPES):
            left.extend(ast.iter_child_nodes(node))

"""Which variables hold values of a step before: a search from the script's modules and the functions that run.

Only attributes that are stored are read: no property or ``__getattr__`` of the script is called.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import torch

from diagnose.capture.dataflow.storages import Storages
from diagnose.capture.dataflow.window import DataflowWindow
from diagnose.capture.record.sampler import is_users_file, users_frames
from diagnose.capture.record.source_lines import tree_of

MAX_LOOKED = 500_000  # members: 0.5 s
MAX_ENDS = 1_000  # members at either end of a container, where steps add theirs
MAX_NAME_DEPTH = 6  # attributes and keys in a name
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_NO_OWNERS = (type, ModuleType, FunctionType, str, bytes, int, float)
_STORING = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put"})


class Holder(NamedTuple):
    """A variable or attribute that holds values of a step before the last one."""

    name: str  # "outputs", "self.history['loss']"
    kind: str  # its type: "list", "Tensor"
    num: int  # members, 1 of a tensor
    storages: frozenset[int]  # of earlier recorded steps, by their numbers
    keeps_graph: bool  # a member's graph reaches an earlier step
    file: str  # of the function or module whose variable it is, or of the class whose attribute
    function: str  # "" for another scope
    identifier: str  # the last one in its name
    key: str  # after it, "" for none


def holders(window: DataflowWindow) -> list[Holder]:
    """Return what holds values of the recorded steps before the last one.

    To be called at a step boundary, on the thread that steps; no more is recorded after it.
    """
    window.pause()
    if not window.num_steps:
        return []
    search = _Search(window.storages, window.num_steps - 1, window.earlier_nodes)
    for file, function, names in _namespaces(sys._getframe(1)):
        search.add(file, function, names)
    return search.run()


class _Place(NamedTuple):
    """Something that was reached, and how."""

    name: str
    depth: int
    file: str
    function: str
    identifier: str
    key: str = ""


class _Search:
    def __init__(self, storages: Storages, last_step: int, nodes: range) -> None:
        self._storages, self._last_step, self._earlier = storages, last_step, nodes
        self._queue: deque[tuple[_Place, Any]] = deque()
        self._seen: dict[int, Any] = {}  # keeps each alive, so that no other gets its address
        self._nodes: set[Any] = set()  # of autograd, from which no earlier step is reached
        self._left = MAX_LOOKED

    def add(self, file: str, function: str, names: Mapping[str, Any]) -> None:
        """Start from the variables of a module or function."""
        self._queue.extend((_Place(name, 0, file, function, name), held) for name, held in list(names.items()))

    def run(self) -> list[Holder]:
        """Return what is found, the shortest names first."""
        found = []
        while self._queue and self._left > 0:
            place, held = self._queue.popleft()
            self._left -= 1
            if id(held) in self._seen:
                continue
            if isinstance(held, torch.Tensor):
                found.append(self._holder(place, held, [held]))
            elif isinstance(held, _CONTAINERS):
                found += self._container(place, held)
            elif not isinstance(held, _NO_OWNERS):
                self._seen[id(held)] = held
                self._attributes(place, held)
        return [one for one in found if one.storages or one.keeps_graph]

    def _container(self, place: _Place, held: Any) -> Iterator[Holder]:
        self._seen[id(held)] = held
        # A mapping of more names is filled by the steps.
        if isinstance(held, dict) and len(held) <= 32 and all(isinstance(key, str) for key in held):
            if place.depth < MAX_NAME_DEPTH:
                for key, each in list(held.items()):
                    name = f"{place.name}[{key!r}]"
                    self._queue.append((place._replace(name=name, depth=place.depth + 1, key=key), each))
            return
        tensors: list[torch.Tensor] = []
        self._members(place, held, tensors, 0)
        yield self._holder(place, held, tensors)

    def _members(self, place: _Place, held: Any, tensors: list[torch.Tensor], depth: int) -> None:
        members = _ends(held)
        self._left -= len(members)
        for each in members:
            if isinstance(each, torch.Tensor):
                tensors.append(each)
            elif isinstance(each, _CONTAINERS):
                if depth < 3 and id(each) not in self._seen:  # deeper containers are others
                    self._seen[id(each)] = each
                    self._members(place, each, tensors, depth + 1)
            elif place.depth < MAX_NAME_DEPTH and not isinstance(each, _NO_OWNERS) and each is not None:
                self._queue.append((place._replace(name=f"{place.name}[…]", depth=place.depth + 1), each))

    def _attributes(self, place: _Place, held: Any) -> None:
        if place.depth >= MAX_NAME_DEPTH:
            return
        file = _file_of(type(held))
        scope = (file, "") if is_users_file(file) else (place.file, place.function)
        for key, each in _stored(held):
            parts = list(each.items()) if key == "_modules" and isinstance(each, dict) else [(key, each)]
            for name, one in parts:
                self._queue.append((_Place(f"{place.name}.{name}", place.depth + 1, *scope, name), one))

    def _holder(self, place: _Place, held: Any, tensors: list[torch.Tensor]) -> Holder:
        num = 1 if isinstance(held, torch.Tensor) else len(held)
        older = {number for tensor in tensors if (number := self._older_storage(tensor)) >= 0}
        keeps = any(self._reaches_earlier(tensor) for tensor in tensors)
        name, _, *where = place
        return Holder(name, type(held).__name__, num, frozenset(older), keeps, *where)

    def _older_storage(self, tensor: torch.Tensor) -> int:
        first = self._storages.origin(tensor)
        is_older = first is not None and first.producer >= 0 and first.step < self._last_step
        return first.storage if first is not None and is_older else -1

    def _reaches_earlier(self, tensor: torch.Tensor) -> bool:
        """Return whether the graph of a tensor has nodes that earlier recorded steps made.

        The node of a view of something that was written to is not read: that would make a new one.
        """
        if not tensor.requires_grad or (tensor._is_view() and tensor._version):
            return False
        left = [tensor.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in self._nodes:
                continue
            number = node._sequence_nr()
            if number in self._earlier:
                return True
            self._nodes.add(node)
            if number < self._earlier.start:
                continue
            left += [each for each, _ in node.next_functions]
        return False


def _ends(held: Any) -> list[Any]:
    """Return the members at both ends of a container; all of a set that is not long, which has none."""
    if isinstance(held, set | frozenset):
        return list(held) if len(held) <= MAX_LOOKED // 10 else []
    members = held.values() if isinstance(held, dict) else held
    if len(held) <= 2 * MAX_ENDS:
        return list(members)
    return [*islice(members, MAX_ENDS), *islice(reversed(members), MAX_ENDS)]


def _stored(held: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an object stores."""
    try:
        own = object.__getattribute__(held, "__dict__")
    except (AttributeError, TypeError):
        own = None
    if isinstance(own, dict):
        yield from list(own.items())
    for kind in type(held).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType) and is_users_file(_file_of(kind)):
                try:
                    yield name, slot.__get__(held)
                except AttributeError:  # nothing is stored there
                    continue


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen "


def _namespaces(frame: FrameType | None) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the variables of the script's functions that run, then those of its modules."""
    modules: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for each in users_frames(frame):
        code = each.f_code
        modules[id(each.f_globals)] = code.co_filename, each.f_globals
        if code.co_flags & inspect.CO_OPTIMIZED:
            yield code.co_filename, code.co_name, _variables(each)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if type(module) is ModuleType else None
        if isinstance(file, str) and is_users_file(file):
            modules[id(vars(module))] = file, vars(module)
    yield from ((file, "", names) for file, names in modules.values())


def _variables(frame: FrameType) -> Mapping[str, Any]:
    """Return a function's variables; up to Python 3.12 reading them leaves a copy at the frame, which is emptied."""
    kept = frame.f_locals
    found = dict(kept)
    # References to the copy: the frame's, the variable's and the argument's; more if the script has it too.
    if isinstance(kept, dict) and sys.getrefcount(kept) <= 3:
        kept.clear()
    return found


def storing_lines(holder: Holder, running: Collection[str]) -> tuple[int, ...]:
    """Return the lines that store into what a holder names; () if the source is not known.

    Those of functions that are known to have run are preferred; ``running`` are their names.
    """
    tree = tree_of(holder.file) or ast.Module([], [])
    found = _storing(_scopes(tree, {holder.function}) or [tree], holder)
    ran = found & _storing(_scopes(tree, running), holder)
    return tuple(sorted(ran or found))


def _scopes(tree: ast.Module, names: Collection[str]) -> list[ast.AST]:
    """Return the functions of some names."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name in names]


def _storing(scopes: Sequence[ast.AST], holder: Holder) -> set[int]:
    nodes = [node for scope in scopes for node in ast.walk(scope)]
    found = [node for node in nodes if isinstance(node, ast.stmt) and _stores(node, holder)]
    of_key = [node for node in found if any(vars(each).get("value") == holder.key for each in ast.walk(node))]
    return {node.lineno for node in (of_key if holder.key else []) or found}


def _stores(node: ast.stmt, holder: Holder) -> bool:
    """Return whether a statement adds to what a holder names, or assigns to it what is made of it."""
    name = holder.identifier
    match node:
        case ast.AugAssign(target=target):
            return _identifier(target) == name
        case ast.Expr(ast.Call(ast.Attribute(held, method))):
            return method in _STORING and _identifier(held) == name
        case ast.Assign(targets=targets, value=value):
            parts = [each for target in targets for each in getattr(target, "elts", [target])]
            mine = [each for each in parts if _identifier(each) == name]
            read = {_identifier(each) for each in ast.walk(value) if isinstance(each, ast.Name | ast.Attribute)}
            return any(name in read or isinstance(each, ast.Subscript) for each in mine)
    return False


def _identifier(node: ast.expr) -> str:
    """Return the last name in an expression: "history" in ``self.history['loss']`` and ``history.setdefault(…)``."""
    while isinstance(node, ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Attribute) and node.attr in _STORING:
            node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

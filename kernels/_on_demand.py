"""Weights that arrive when they are first used: with the call of the module that owns them, or without one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

__all__ = ["Pending"]

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules of torch's own that call their parts; others, such as attention, hand weights of theirs to one function."""

WITHOUT_VALUES = frozenset(
    {"size", "dim", "ndimension", "numel", "nelement", "stride", "requires_grad_", "__len__", "__hash__"}
    | {"shape", "ndim", "layout", "is_meta", "is_leaf", "is_sparse", "is_nested", "is_quantized", "_version", "_base"}
    | {"requires_grad", "grad", "grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks"}
)
"""Methods and attributes in which a tensor on the meta device agrees with the weight."""


class Pending:
    """The tensors of a model that are still on the meta device; ``names`` lists them.

    Each module takes its own before its first forward pass, or when one of them is used without a call; under one
    lock, so calls from several threads are safe.
    """

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor], place: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._model, self._tensors, self._place = model, dict(tensors), place
        self._lock = threading.RLock()  # placing a weight may call into a module of a tensor subclass
        self._wanted: dict[int, tuple[Tensor, Tensor]] = {}  # what awaits, and the one on meta that it stands for
        self._loaded_by_id: dict[int, Tensor] = {}  # by the id of the tensor that awaits, so that ties stay ties
        self._waiting = {path for path, module in model.named_modules() if self._own(path, module)}
        self._handles: dict[str, Any] = {}
        made: dict[int, Tensor] = {}
        for path, module in model.named_modules():
            if path in self._waiting:
                self._await(path, module, made)
            if path in self._waiting or _uses_parts(module):
                self._handles[path] = module.register_forward_pre_hook(self._hook(path), prepend=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors that nothing has needed so far."""
        return tuple(self._tensors)

    def load_rest(self) -> None:
        """Load what is left, such as before saving the model."""
        for path in list(self._handles):
            self._load(path)

    def value_of(self, awaited: Tensor, path: str) -> Tensor:
        """Return the weight that stands for ``awaited``, loaded with the others of its module."""
        with self._lock:
            self._load_own(path)
            return self._loaded_by_id[id(awaited)]

    def _hook(self, path: str) -> Callable[[nn.Module, Any], None]:
        return lambda *_: self._load(path)

    def _own(self, path: str, module: nn.Module) -> list[str]:
        held = {**module._parameters, **module._buffers}
        return [name for name in held if _full(path, name) in self._tensors]

    def _await(self, path: str, module: nn.Module, made: dict[int, Tensor]) -> None:
        """Replace the module's tensors by such that load themselves; the same one for a tie."""
        for name in self._own(path, module):
            held: Any = module._parameters if name in module._parameters else module._buffers
            wanted = held[name]
            if id(wanted) not in made:
                made[id(wanted)] = awaited = _awaited(wanted, self, path)
                self._wanted[id(awaited)] = (awaited, wanted)
            held[name] = made[id(wanted)]

    def _load(self, path: str) -> None:
        """Load what a call of the module uses."""
        with self._lock:
            if path not in self._handles:  # another thread was first
                return
            module = self._model.get_submodule(path)
            for part, _ in module.named_modules(prefix=path) if _uses_parts(module) else ((path, module),):
                self._load_own(part)
            handle = self._handles.pop(path, None)
            if handle is not None:
                handle.remove()  # only now: a thread that finds no hook must find the weights

    def _load_own(self, path: str) -> None:
        if path not in self._waiting:
            return
        module = self._model.get_submodule(path)
        for name in self._own(path, module):
            held: Any = module._parameters if name in module._parameters else module._buffers
            held[name] = self._loaded(held[name], _full(path, name))
            del self._tensors[_full(path, name)]
        self._waiting.discard(path)
        if not _uses_parts(module):
            self._handles.pop(path).remove()

    def _loaded(self, awaited: Tensor, name: str) -> Tensor:
        if id(awaited) not in self._loaded_by_id:
            placed = self._place(self._tensors[name], self._wanted[id(awaited)][1])
            if isinstance(awaited, nn.Parameter):
                placed = nn.Parameter(placed, requires_grad=awaited.requires_grad)
            self._loaded_by_id[id(awaited)] = placed
        return self._loaded_by_id[id(awaited)]


class _Awaited(Tensor):
    """A tensor on the meta device that loads its module when a value of it is wanted."""

    pending: Pending
    path: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the signature that torch asks for
        name = func.__name__
        if name in ("__get__", "__set__"):
            name = func.__self__.__name__  # type: ignore[attr-defined]  # the attribute's own
        if name in WITHOUT_VALUES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = _pytree.tree_map_only(_Awaited, lambda awaited: awaited.value(), (args, kwargs or {}))
        return func(*args, **kwargs)

    def value(self) -> Tensor:
        """Return the weight."""
        return self.pending.value_of(self, self.path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.value(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:  # pickle's
        return self.value().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch has no types there
        return f"not loaded yet: {tuple(self.shape)}"


class _AwaitedParameter(_Awaited, nn.Parameter):
    """One that a module has as a parameter."""


def _awaited(wanted: Tensor, pending: Pending, path: str) -> Tensor:
    kind = _AwaitedParameter if isinstance(wanted, nn.Parameter) else _Awaited
    made: Any = Tensor._make_subclass(kind, wanted.detach(), wanted.requires_grad)
    made.pending, made.path = pending, path
    return made  # type: ignore[no-any-return]  # a tensor


def _uses_parts(module: nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn.") and not isinstance(module, LISTS)
    return own and any(True for _ in module.children())


def _full(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

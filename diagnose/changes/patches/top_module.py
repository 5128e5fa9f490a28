"""Finds the outermost module of a script by its calls, so that patches can act on the model as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from diagnose.changes.common.change import Undo

Before: TypeAlias = Callable[[Any, tuple[Any, ...]], Any]  # the signature of torch's hooks
After: TypeAlias = Callable[[Any, Any, Any], Any]
_active: list[tuple[Before, After]] = []  # hooks of `around_top_module` that are in place


def around_top_module(begins: Callable[[Any, tuple[Any, ...]], Any], ends: Callable[[Any], Any]) -> Undo:
    """Call ``begins`` before every outermost forward, and let ``ends`` convert what the forward returns.

    What ``begins`` returns, where it is not None, takes the place of the positional arguments.

    In what a compiler traces the hooks do nothing: of a model that a patch compiles they run outside
    (`with_hooks_outside`).
    """
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    depth: list[Any] = []

    def before(module: Any, args: tuple[Any, ...]) -> Any:  # torch's signature
        if torch.compiler.is_compiling():  # an inner module's call, which becomes part of a graph
            return None
        depth.append(module)
        return begins(module, args) if len(depth) == 1 else None

    def after(module: Any, args: Any, output: Any) -> Any:  # torch's signature
        if torch.compiler.is_compiling() or not depth or depth[-1] is not module:
            return None  # or a call that began before the hooks were there
        depth.pop()
        return ends(output) if not depth else None

    handles = (
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    )
    _active.append((before, after))

    def undo() -> None:
        _active.remove((before, after))
        for handle in handles:
            handle.remove()

    return undo


def with_hooks_outside(module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled call of a module that runs the hooks of `around_top_module` around what is compiled."""

    def outside(*args: Any, **kwargs: Any) -> Any:
        hooks = tuple(_active)
        for before, _ in hooks:
            args = _positional(before(module, args), args)
        output = None
        try:
            output = call(*args, **kwargs)
        finally:
            for _, after in hooks:
                changed = after(module, args, output)
                output = output if changed is None else changed
        return output

    return outside


def _positional(changed: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments after a hook, as torch takes what it returned."""
    return args if changed is None else changed if isinstance(changed, tuple) else (changed,)


def once_for_top_module(act: Callable[[Any, tuple[Any, ...]], None]) -> Undo:
    """Call ``act`` once with each outermost module that has parameters, and its arguments, before its first forward.

    A criterion without parameters may be called first; it is passed over.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    seen: set[int] = set()
    handle: list[Any] = []

    def before(module: Any, args: tuple[Any, ...]) -> None:  # torch's signature
        if id(module) in seen or next(module.parameters(), None) is None:
            return
        handle.pop().remove()  # inner modules must not be taken for outermost ones, and compiling wants no hooks
        seen.update(id(inner) for inner in module.modules())
        act(module, args)

    handle.append(register_module_forward_pre_hook(before))

    def undo() -> None:
        for one in handle:
            one.remove()

    return undo

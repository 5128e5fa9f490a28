"""Finds the outermost module of a script by its calls, so that patches can act on the model as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diagnose.changes.common.patching import Undo

__all__ = ["around_top_module", "once_for_top_module"]


def around_top_module(begins: Callable[[Any, tuple[Any, ...]], Any], ends: Callable[[Any], Any]) -> Undo:
    """Call ``begins`` before every outermost forward, and let ``ends`` convert what the forward returns.

    What ``begins`` returns, where it is not None, takes the place of the positional arguments.

    Hooks on single modules must not exist while something compiles, so patches that compile use
    `once_for_top_module`.
    """
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    depth: list[Any] = []

    def before(module: Any, args: tuple[Any, ...]) -> Any:  # torch's signature
        depth.append(module)
        return begins(module, args) if len(depth) == 1 else None

    def after(module: Any, args: Any, output: Any) -> Any:  # torch's signature
        if not depth or depth[-1] is not module:
            return None  # a call that began before the hooks were there
        depth.pop()
        return ends(output) if not depth else None

    handles = (
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


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

"""Patches that compile the model in place."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.change import Log, Undo, replace_attribute, undo_all
from diagnose.changes.patches.top_module import once_for_top_module, with_hooks_outside


def compile_model(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Compile the outermost module before its first forward."""
    return _compile(log, None)


def compile_graphs(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Compile the outermost module and replay its launches as CUDA graphs."""
    return _compile(log, "reduce-overhead")


def stop_recompiling(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let every `torch.compile` and `Module.compile` of the script make one graph for all sizes."""
    import torch

    undo_each = [_dynamic(owner, log) for owner in (torch, torch.nn.Module)]

    return undo_all(undo_each)


def _dynamic(owner: Any, log: Log) -> Undo:  # torch, or the class Module
    original = owner.compile

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:  # whatever it takes
        if not kwargs.get("dynamic"):  # also where a script asks for a graph of each size
            kwargs["dynamic"] = True
            log.did("torch.compile(dynamic=True)")
        return original(*args, **kwargs)

    return replace_attribute(owner, "compile", compile)


def _compile(log: Log, mode: str | None) -> Undo:
    compiled: list[Any] = []

    def act(module: Any, args: tuple[Any, ...]) -> None:  # a Module and its arguments
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            log.left("a model that is compiled already")
            return
        from diagnose.kernels.compiling import compiled_call

        # Module.compile() does nothing to torch's own classes, such as nn.Sequential, and gives no warning.
        call = compiled_call(module, mode or "default", "inductor", {})
        module._compiled_call_impl = with_hooks_outside(module, call)
        compiled.append(module)
        log.did(f"{type(module).__name__}.compile({f'mode={mode!r}' if mode else ''})")

    undo_hook = once_for_top_module(act)

    def undo() -> None:
        undo_hook()
        for module in compiled:
            module._compiled_call_impl = None

    return undo

"""Patches that let a model and its loss run the bundled operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute
from diagnose.changes.patches.top_module import once_for_top_module

__all__ = ["fused_loss", "patch_operators"]


def patch_operators(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Replace modules of the outermost module that an operator can stand for, before its first forward."""
    undo_each: list[Undo] = []

    def act(module: Any, args: tuple[Any, ...]) -> None:  # a Module and its arguments
        from diagnose.kernels.patching import patch

        patched = patch(module)
        undo_each.append(patched.undo)
        for entry in patched.replaced:
            log.did(f"{entry.was} runs {entry.now}")
        if not patched.replaced:
            log.left("a model without modules that an operator can stand for")

    undo_hook = once_for_top_module(act)

    def undo() -> None:
        undo_hook()
        for one in undo_each:
            one()

    return undo


def fused_loss(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let the cross entropy of rows of logits and integer classes run the bundled operator."""
    from torch.nn import functional

    from diagnose.kernels.ops.cross_entropy import cross_entropy

    original = functional.cross_entropy

    def fused(input: Any, target: Any, weight: Any = None, *args: Any, **options: Any) -> Any:  # torch's names
        known = not args and weight is None and not set(options) - {"ignore_index", "label_smoothing", "reduction"}
        fits = input.dim() == 2 and target.dim() == 1 and not target.is_floating_point()
        if not known or not fits:
            log.left("a cross entropy with weights, shares or further dimensions")
            return original(input, target, weight, *args, **options)
        log.did("F.cross_entropy runs cross_entropy")
        return cross_entropy(input, target, **options)

    return replace_attribute(functional, "cross_entropy", fused)

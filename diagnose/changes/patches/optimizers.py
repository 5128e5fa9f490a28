"""Patches of the optimizer's implementation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.change import REMOVED, Log, SetArguments, Undo, replace_attribute, undo_all
from diagnose.changes.patches.top_module import once_for_top_module

FUSED_CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")  # those with a fused implementation
FOREACH_CLASSES = (*FUSED_CLASSES, "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD")


def differentiates(passed: Mapping[str, object]) -> str:
    """Return why an optimizer with these arguments keeps its loop, "" where it need not."""
    return "it is differentiable, and that only the loop over its tensors is" if passed.get("differentiable") else ""


# torch makes no optimizer that is both, and takes the one alone where the other is not mentioned.
EDITS = {
    "fused": SetArguments(FUSED_CLASSES, {"fused": True}, without=("foreach",), unless=differentiates),
    "foreach": SetArguments(FOREACH_CLASSES, {"foreach": True}, without=("fused",), unless=differentiates),
}

# Patches that let a model and its loss run the bundled operators.


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
            log.left("a model without modules that an operator can replace")

    return undo_all((once_for_top_module(act), undo_all(undo_each)))


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


def fused_optimizer(log: Log, options: Mapping[str, Any]) -> Undo:
    """Make torch's own optimizers with ``fused=True`` where the class and the parameters allow it."""
    return _implementation("fused", log, options)


def foreach_optimizer(log: Log, options: Mapping[str, Any]) -> Undo:
    """Make torch's own optimizers with ``foreach=True`` where the class allows it."""
    return _implementation("foreach", log, options)


def _implementation(flag: str, log: Log, options: Mapping[str, Any]) -> Undo:
    import torch

    classes = [getattr(torch.optim, name) for name in EDITS[flag].of]
    undo = [_patched(c, flag, log, options) for c in classes if flag in inspect.signature(c.__init__).parameters]

    return undo_all(undo)


def _patched(cls: type, flag: str, log: Log, options: Mapping[str, Any]) -> Undo:
    original = cls.__init__  # type: ignore[misc]  # that is the point
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
        if type(self) is not cls or _has(signature, flag, self, args, kwargs):
            original(self, *args, **kwargs)  # a subclass has its own arguments; what is set already stays
            return
        before = {k: v for k, v in signature.bind(self, *args, **kwargs).arguments.items() if k != "self"}
        # The parameters so that they can be gone through twice: a generator is used up by the first attempt.
        parameters = before["params"]
        before["params"] = [
            {**entry, "params": _listed(entry["params"])} if isinstance(entry, Mapping) else entry
            for entry in parameters
        ]
        edits, why = EDITS[flag].of_call(before, options)
        changed = {name: value for name, value in {**before, **edits}.items() if value is not REMOVED}
        if not why and not _is_best(cls, flag, {k: v for k, v in changed.items() if k != flag}):
            why = f"{flag} does not work for its parameters"
        if why:
            log.left(f"{cls.__name__}: {why}")
            original(self, **before)
            return
        try:
            original(self, **changed)
        except (RuntimeError, ValueError, TypeError) as error:
            log.left(f"{cls.__name__}: {error}")
            original(self, **before)
        else:
            log.did(f"{cls.__name__}: {flag}=True")

    return replace_attribute(cls, "__init__", made)


def _has(signature: inspect.Signature, flag: str, self: object, args: Any, kwargs: Any) -> bool:
    return bool(signature.bind(self, *args, **kwargs).arguments.get(flag))


def _listed(parameters: Any) -> list[Any]:  # a tensor, or an iterable of what an optimizer takes
    return [parameters] if hasattr(parameters, "dtype") else list(parameters)


def _is_best(cls: type, flag: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the bundled choice of implementations takes this one for these parameters."""
    from diagnose.kernels.optimizers import best_implementation

    others = {name: value for name, value in arguments.items() if name != "params"}
    no_fused = {"fused": False} if flag == "foreach" else {}
    return best_implementation(cls, arguments["params"], **others, **no_fused) == flag

"""Replaces modules by operators that work in one pass.

What it cures
    `unfused-elementwise`, where a model's own classes write RMSNorm, GELU or SwiGLU out, as most language models do;
    and `memory-pressure` at the loss.

When it does not help
    On a CPU, where plain formulas run. After `torch.compile`, which fuses such expressions itself: measure both.
    Modules that are one kernel already (``nn.GELU``, ``nn.LayerNorm``, ``nn.Softmax``, a recent ``nn.RMSNorm``) are
    left unless ``built_in`` asks for them.

Cost
    Each candidate runs twice on a few random numbers. About 20 µs of host time a call outside of `torch.compile`.

Numerics
    A class is replaced only where random inputs, in training and in evaluation, gave the operator's results to
    rounding. Results are in the dtype of the input, the loss in float32. Parameters, hooks, names and the state dict
    stay as they are.

Example::

    from diagnose.kernels.patching import patch

    patched = patch(model)  # before it is compiled or wrapped
    print(patched)  # which modules run which operator now, and what was left and why
    train_step(next(iter(loader)))
    patched.undo()
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from diagnose.kernels._module_matching import is_one_kernel, match_operator

__all__ = ["Left", "Patched", "Replaced", "patch"]


@dataclass(frozen=True)
class Replaced:
    """A module that runs an operator now: its name in the model, its class, and the operator's name."""

    name: str
    was: str
    now: str


@dataclass(frozen=True)
class Left:
    """A module that looked like a candidate and was left, with the reason."""

    name: str
    was: str
    reason: str


@dataclass
class Patched:
    """What ``patch`` did; as a context manager it is undone at the end of the block."""

    replaced: tuple[Replaced, ...] = ()
    left: tuple[Left, ...] = ()
    _undo: list[tuple[str, nn.Module, Any]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Give every module its forward back; a second call does nothing.

        Raises:
            RuntimeError: something else has replaced a forward since; that one is left, the others are restored.
        """
        replaced = []
        while self._undo:
            name, module, ours = self._undo.pop()
            if module.__dict__.get("forward") is ours:
                del module.forward
            else:
                replaced.append(name)
        if replaced:
            raise RuntimeError(f"The forward of {', '.join(replaced)} was replaced again since, and was left so.")

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"{entry.name} ({entry.was}) runs {entry.now}" for entry in self.replaced] or ["nothing was replaced"]
        return "\n".join([*lines, *(f"{entry.name} ({entry.was}) was left: {entry.reason}" for entry in self.left)])


def patch(model: nn.Module, *, built_in: bool = False) -> Patched:
    """Let the modules of ``model`` that an operator can stand for run it, and return which.

    With ``built_in`` also those of torch's own that are one kernel already. Call it before `torch.compile` and before
    the model is wrapped for several GPUs. Copies and pickles of the model stay patched.

    Raises:
        TypeError: ``model`` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch needs a torch.nn.Module, not {type(model).__name__}.")
    wanted = [(name or "the model", module) for name, module in model.named_modules()]
    found = [(name, module, match_operator(module)) for name, module in wanted if built_in or not is_one_kernel(module)]
    done = Patched(left=tuple(Left(name, type(m).__name__, why) for name, m, why in found if isinstance(why, str)))
    for name, module, made in found:
        if made is not None and not isinstance(made, str):
            ours = functools.partial(made.forward, module, *made.arguments)
            module.forward = ours
            done._undo.append((name, module, ours))
            done.replaced += (Replaced(name, type(module).__name__, made.operator),)
    return done

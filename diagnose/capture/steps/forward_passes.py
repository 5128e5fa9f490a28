"""Notices forward passes that no backward pass uses: a policy that acts or a teacher, called with gradients on.

An outermost module's output holds the graph of its pass as long as anything can still take gradients of it. What is
no longer held when a step's first backward pass begins is not used by it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from diagnose.capture.steps import hooks
from diagnose.capture.steps.hooks import Undo, replace_function
from diagnose.capture.steps.phases import Phases
from diagnose.model.limits import MIN_REGIONS

__all__ = ["ForwardPasses"]

KEY = "diagnose"  # in the metadata of a node
MAX_DEPTH = 3  # of containers in an output


class _Mark:
    """Lives as long as the node of the graph that it is stored in."""

    __slots__ = ("__weakref__",)


class ForwardPasses:
    """Reports to ``phases`` until the step is known, and after that only if passes were unused.

    ``counts`` returns whether a call of this thread, now, is one of a step. Nothing is watched once the script
    compiles: the hook would be compiled with what it is called in.
    """

    def __init__(self, phases: Phases, counts: Callable[[], bool]) -> None:
        self._phases, self._counts = phases, counts
        self._began = False
        self._hook: Undo | None = hooks.watch_forward(self._begins, self._over)
        self._undo_compile = self._before_compiling()

    def settle(self) -> None:
        """Stop watching where no step had unused passes, or too few to be a rollout."""
        if self._phases.most_unused < MIN_REGIONS:
            self.stop()

    def stop(self) -> None:
        """Remove the hooks."""
        if self._hook is not None:
            self._hook()
            self._hook = None
            self._undo_compile()

    def _before_compiling(self) -> Undo:
        import torch

        def watched(compiles: Any) -> Callable[..., Any]:
            def watched_compile(*args: Any, **kwargs: Any) -> Any:
                self.stop()
                return compiles(*args, **kwargs)

            return watched_compile

        return replace_function(torch, "compile", watched)

    def _begins(self, _module: object) -> None:
        import torch

        self._began = torch.is_grad_enabled() and self._counts()
        if self._began:
            self._phases.forward_begins()

    def _over(self, module: Any, output: object) -> None:
        if not self._began:
            return
        self._began = False
        node = _node_of(output)
        if node is not None:
            mark = _Mark()
            node.metadata[KEY] = mark
            self._phases.forward_over(weakref.ref(mark))
        elif next(module.parameters(), None) is not None:
            self._phases.forward_over(None)


def _node_of(output: object, depth: int = 0) -> Any:
    """Return the node of the first tensor in an output that has gradients, None without one."""
    node = getattr(output, "grad_fn", None)
    if node is not None or depth == MAX_DEPTH:
        return node
    if isinstance(output, Mapping):
        output = tuple(output.values())
    parts = output if isinstance(output, tuple | list) else ()
    return next((found for part in parts if (found := _node_of(part, depth + 1)) is not None), None)

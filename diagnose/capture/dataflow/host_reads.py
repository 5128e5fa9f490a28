"""Reports what Python does with the content of a tensor without an operator: ``tolist``, ``numpy`` and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from diagnose.capture.steps.hooks import Undo

__all__ = ["watch_host_reads"]

READERS = ("tolist", "numpy")  # ``__array__`` calls ``numpy``; ``item`` and comparisons are operators
SHARERS = ("__dlpack__", "data_ptr")  # they hand the memory to code that torch does not know


def watch_host_reads(used: Callable[[torch.Tensor, str, bool], None]) -> Undo:
    """Call ``used`` before each such call, with the tensor, the method's name and whether it only reads."""
    own = {name: vars(torch.Tensor).get(name) for name in (*READERS, *SHARERS)}

    def watched(name: str, method: Any) -> Callable[..., Any]:
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            used(self, name, name in READERS)
            return method(self, *args, **kwargs)

        return call

    for name in own:
        setattr(torch.Tensor, name, watched(name, getattr(torch.Tensor, name)))

    def undo() -> None:
        for name, method in own.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)

    return undo

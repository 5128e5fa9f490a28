"""Reports work that passes the dispatcher by: Triton kernels that the script launches itself, and replayed graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from diagnose.capture.dataflow.calls import tensors_in
from diagnose.capture.steps.hooks import Undo, around, replace_function

__all__ = ["GRAPH", "watch_launches"]

GRAPH = "cuda::graph_replay"


def watch_launches(launched: Callable[[str, list[torch.Tensor]], None]) -> Undo:
    """Call ``launched`` before each launch, with a name and the tensors that it is given; return what ends that."""
    undo = []
    triton = sys.modules.get("triton.runtime.jit")
    if triton is not None:

        def watched(run: Any) -> Callable[..., Any]:
            def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
                launched(f"triton::{self.__name__}", tensors_in([*args, *kwargs.values()]))
                return run(self, *args, **kwargs)

            return watched_run

        undo.append(replace_function(triton.JITFunction, "run", watched))
    if hasattr(torch.cuda.CUDAGraph, "replay"):
        undo.append(around(torch.cuda.CUDAGraph, "replay", before=lambda _graph: launched(GRAPH, [])))

    def end() -> None:
        for each in undo:
            each()

    return end

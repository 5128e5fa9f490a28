"""What compiling costs, and how what a CUDA graph captures is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Proposal

if TYPE_CHECKING:
    from diagnose.tables.program import Program

__all__ = ["COMPILATION", "compiled_before_capture"]

# Small models took 31 to 42 s on two cores of a CPU, with an empty cache.
COMPILATION = "a compilation of tens of seconds at the start"


def compiled_before_capture(program: Program, *, title: str, least: float, most: float) -> Proposal:
    """Return how nodes of a graph become fewer."""
    is_inference = program.trains is False
    step = "output = model(static_input)" if is_inference else "loss = whole_step(static_input, static_target)"
    compiled = "model = torch.compile(model)" if is_inference else "whole_step = torch.compile(whole_step)"
    captured = f"with torch.cuda.graph(graph):\n    {step}"
    return Proposal(
        title=title,
        before=captured,
        after=f"{compiled}   # called three times before the capture\n{captured}",
        least=least,
        most=most,
        needs="calls of the compiled function before the capture, in which it compiles; a new capture",
    )

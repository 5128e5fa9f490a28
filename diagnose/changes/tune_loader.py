"""Measure which settings of the DataLoader hide loading.

What it does
    Times a batch and the step, tries workers, prefetching and pinning, and rebuilds the loader with the best of them.

What to watch
    Some seconds at the start. Samples and their order stay the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.loading import is_iterable

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    facts = finding.facts
    if is_iterable(facts) or facts.get("restart_share") or facts.get("library") == "transformers":
        return None
    state = "" if program.trains is False else ", state=(model, optimizer)"
    device = "cuda" if finding.facts.get("has_device") else "cpu"
    return Advice(
        before="for batch in loader:\n    run_step(batch)",
        after="from diagnose.kernels.loader_tuning import tune_loader\n\n"
        f'tuning = tune_loader(loader, run_step{state}, device="{device}")   # tries settings on real steps\n'
        "print(tuning)\nfor batch in tuning.loader:\n    run_step(batch)",
        least=0.0,
        needs="the step as a function of a batch, and some seconds at the start",
    )


CHANGE = Change(
    id="tune-loader",
    title="Measure which settings of the DataLoader hide loading",
    numerics=identical(),
    patch=ByHand("it times the script's own step, which has to be a function of a batch"),
    edit=ByHand("which lines are one step only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.loader_tuning",
)

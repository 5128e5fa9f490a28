"""Load all samples once, before training, and keep them in memory.

What it does
    Passes a list of all samples to the DataLoader in place of the dataset. It is offered if samples draw no random
    numbers and take at most 8 GB.

What to watch
    It pays from the second epoch on, and the first step starts later. `loader.dataset` is then a plain list. A
    transform with its own random generator would repeat its numbers in each epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical
from diagnose.changes.common.loading import MAX_KEPT_BYTES, WHOLE, bytes_of_all, is_iterable, prepared
from diagnose.model.numerics import number
from diagnose.text.numbers import size_words

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

SAMPLE_NS, JOINED_BYTES_PER_NS = 3_000, 2.0  # of putting samples together


def _applies(program: Program, finding: Finding) -> bool:
    facts = finding.facts
    draws = facts.get("source_draws") or facts.get("draws") or facts.get("batches_drew")
    comes_again = program.trains is not False and facts.get("comes_again") is not False
    return (
        bool(facts.get("single_process"))
        and comes_again
        and not (is_iterable(facts) or facts.get("restart_share") or facts.get("slow_line") or draws)
        and facts.get("batches_drew") is not None
        and facts.get("sampler") in WHOLE
    )


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    facts, batch_ns = finding.facts, number(finding.facts, "batch_ns")
    num = number(facts, "batch_size")
    size, made = bytes_of_all(facts), prepared(facts, program)
    if made is None or made.edit is None or not (num and batch_ns and 0 < size <= MAX_KEPT_BYTES):
        return None
    together_ns = SAMPLE_NS * num + number(facts, "batch_bytes") / JOINED_BYTES_PER_NS
    left_out = 1 - together_ns / batch_ns
    if left_out < 0.5:  # of a batch's time, that putting together leaves to be saved
        return None
    return Proposal(
        title=f"Load all samples once, before training, into about {size_words(size)} of memory",
        after="",
        edits=(made.edit,),
        least=0.75 * left_out,  # of what is left then, at least: what a list gives has to be looked up too
        needs=made.needs,
    )


CHANGE = Change(
    id="load-once",
    title="Load all samples once, before training",
    numerics=identical("if a sample stays the same in each epoch"),
    edits_expressions=True,
    proposal=_proposal,
    applies=_applies,
    is_within_share=True,
)

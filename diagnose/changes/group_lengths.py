"""Build batches from samples of similar length, within a token budget.

What it does
    `find_length_batches(dataset, train_step)` sorts samples within windows and measures the budget on a few steps. Less
    padding is computed, ranks get even batches, and the longest batch fits.

What to watch
    Batch sizes vary, so divide the loss by its tokens. The length of each sample must be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Proposal, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


IMPORT = "from diagnose.kernels.length_batches import LengthBatches, lengths_of"
_LATE = frozenset({"late", "turns"})  # kinds of a straggler that longer samples can make
_MORE = frozenset({"more-work", ""})  # causes of one, the last that none is known


def _applies(program: Program, finding: Finding) -> bool:
    of_lengths = finding.facts.get("kind", "late") in _LATE and finding.facts.get("cause", "") in _MORE
    return of_lengths and not program.server and bool(program.varying_sizes)


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    if program.trains is False:
        size = program.batch_size or "batch_size"
        return Proposal(
            after=f"{IMPORT}\n\n"
            f"batches = LengthBatches(lengths_of(dataset), max_samples={size}, shuffle=False)\n"
            "loader = DataLoader(dataset, batch_sampler=batches, collate_fn=pad)   # outputs come in that order",
            most=0.0,
            needs="inputs that are all known before the run",
        )
    ranks = (
        "\n# on each rank; then LengthBatches(lengths, budget=...) with the smallest of all"
        if "kind" in finding.facts
        else ""
    )
    return Proposal(
        after="from diagnose.kernels.length_batches import find_length_batches\n\n"
        "found = find_length_batches(dataset, train_step, collate_fn=pad, state=(model, optimizer))\n"
        "print(found)   # bytes of a token, how many fit, and what is padded\n"
        f"loader = DataLoader(dataset, batch_sampler=found.batches, collate_fn=pad){ranks}",
        most=0.0,
        needs="a loss that is divided by its tokens, and the length of each sample",
    )


CHANGE = Change(
    id="group-lengths",
    title="Give each batch samples of like lengths, within a budget of tokens",
    numerics=other_training("batches hold other samples, and other numbers of them"),
    edit=EditLoop("with_length_batches", "device", "cpu", IMPORT),
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.length_batches",
)

"""Files are larger than what is saved, because a saved tensor is a view of a larger one.

What it looks for
    Calls of `torch.save` with tensors that show a part of their storage. Threshold: 1% of the run's time.

Why it costs
    `torch.save` writes the whole storage of a view. A slice of the data set writes the data set.

What to do
    Save a copy of the view: `tensor.clone()`.

How sure
    High: sizes are those of the tensors that were saved. The time is a share of the measured time, by bytes. Needs
    `diagnose trace`.
"""

from __future__ import annotations

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.avoidable import IN_LONG_STEP
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.run_steps import run_mean
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, percent, plural, size_words

META = RuleMeta(
    id="saved-view",
    kind="run",
    order=12,
    legend=Legend("files hold more than what is saved"),
    needs=("steps of the whole run",),
    changes=("save-copy",),
)
ADVICE = (
    Advice(
        id="save-copy",
        title="Save a copy of {name}, not a view of a larger tensor{there}",
        numerics=identical(),
        after="{name}.clone()   # in place of the view",
        needs="memory for the copy while it is saved",
        watch="Only a copy has its own storage: detach(), cpu() and contiguous() may return the view itself.",
        least=0.8,  # what a file takes beyond its bytes stays
    ),
)


def find(t: Tables) -> list[Finding]:
    """Name the lines that save views of larger tensors, the most expensive first."""
    run = t.capture.run
    mean = run_mean(run, t.capture) if run is not None else None
    if run is None or mean is None:
        return []
    found = []
    for one in t.capture.known.saves:
        share = min(one.spare_ns / run.num / mean[0], 1.0)
        if share >= THRESHOLDS.naming_share:
            found.append(
                Finding(
                    rule=META.id,
                    title="torch.save writes the whole storage of a view",
                    lost_ns=share * mean[0],
                    share=share,
                    count=one.num,
                    total_ns=one.spare_ns,
                    median_ns=one.spare_ns // max(one.num, 1),
                    evidence=(
                        f"{one.name or 'The tensor'} shows {size_words(one.view_bytes)} of a storage of "
                        f"{size_words(one.storage_bytes)}, and all of that is written.",
                        f"{percent(one.spare_bytes / max(one.num_bytes, 1), 0)} of the {size_words(one.num_bytes)} in "
                        f"a file do not belong to a saved tensor. {plural(one.num, 'file')} took "
                        f"{duration(one.took_ns)}.",
                    ),
                    where=(line_at(t, one.file, one.line, one.function),),
                    facts={"phase": "checkpoint", "name": one.name or "the tensor", IN_LONG_STEP: True},
                )
            )
    return sorted(found, key=lambda finding: -finding.lost_ns)

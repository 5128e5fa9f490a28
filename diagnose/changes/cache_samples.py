"""Keep decoded samples in memory that all workers share.

What it does
    Caches a slow, deterministic part of a sample: `decode = SharedCache(4 << 30).stage(decode, version="1")`. From the
    second epoch on, workers read it from memory.

What to watch
    Keep random augmentation outside of the cached function. A trial caches whole samples, and only those of datasets
    without random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.loading import is_iterable
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    facts = finding.facts
    comes_again = not is_iterable(facts) and program.trains is not False
    is_of_samples = not (facts.get("restart_share") or facts.get("by_sampler"))
    return comes_again and is_of_samples and facts.get("library") != "transformers"


CHANGE = Change(
    id="cache-samples",
    title="Keep decoded samples in memory that all workers share",
    numerics=identical("if the cached stage is deterministic"),
    patch=Patch(loading.cache_samples),
    proposal=Proposal(
        before="image = decode(path)",
        after="from diagnose.kernels.shared_cache import SharedCache\n\n"
        "cache = SharedCache(4 << 30)                # bytes, one budget for all workers\n"
        'decode = cache.stage(decode, version="1")   # the slow, deterministic part; before the workers start\n'
        "image = decode(path)                        # as before",
        least=0.0,
        needs="several epochs, and memory for the samples that are wanted most",
    ),
    applies=_applies,
    remedy="diagnose.kernels.shared_cache",
)

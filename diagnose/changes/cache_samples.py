"""Keep decoded samples in memory that all workers share.

What it does
    Keeps what a deterministic stage of a sample computed, such as decoding, in one budget of memory for all workers;
    from the second epoch on it is mapped instead of computed.

What to watch
    Random augmentation stays behind the stage. The first epoch gains nothing. A trial keeps whole samples, of datasets
    that draw no random numbers; it gains where its steps come to the second epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, Patch, identical
from diagnose.changes.common.loading import is_iterable
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> str:
    if is_iterable(finding.facts):
        return "a stream has no samples to come back to"
    if finding.facts.get("restart_share"):
        return "the loader restarts for each batch, which takes time"
    if finding.facts.get("library") == "transformers":
        return "a pipeline of transformers makes its samples itself"
    return "a run of inference sees each sample once" if program.trains is False else ""


CHANGE = Change(
    id="cache-samples",
    title="Keep decoded samples in memory that all workers share",
    numerics=identical("where the cached stage is deterministic"),
    patch=Patch(loading.cache_samples),
    edit=ByHand("which stage of a sample is deterministic only the dataset's author knows"),
    advice=Advice(
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

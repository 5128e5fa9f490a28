"""Steps that reduce gradients over ranks several times although only their sum is read: what one reduction gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from diagnose.model.capture import Capture
from diagnose.model.locations import Where
from diagnose.ranks.matching import Matches
from diagnose.ranks.profile import CollectiveKind, RankProfile, Reduced
from diagnose.ranks.reduced import reduced_again
from diagnose.ranks.replay import Step, replayed, schedule_of
from diagnose.ranks.waits import Times


class ReducedSums(NamedTuple):
    """What reducing only the sum saves."""

    one: Reduced
    where: Where
    saved_ns: float  # a step, by the replay


def reduced_of(capture: Capture) -> Reduced | None:
    """Return the reductions of a capture's data flow of which only a later sum is read."""
    found = reduced_again(capture.dataflow) if capture.dataflow is not None else None
    place = found.last.place if found is not None else None
    if found is None or place is None:
        return None
    name = "reduce_scatter" if "reduce_scatter" in found.last.name else "all_reduce"
    code = capture.lines.get(place[:2], "")
    return Reduced(*place, code, found.num, found.share, name, found.last.phase == "backward")


def reduced_sums(ranks: Sequence[RankProfile], matches: Matches, times: Times) -> ReducedSums | None:
    """Return what the step is shorter if all ranks reduce only the last sum; None if they do, or it was not replayed.

    Ranks that reach the earlier reductions at other times than the others no longer wait there.
    """
    each = [p.reduced for p in ranks]
    one, recorded = each[0], schedule_of(ranks, matches, times) if all(each) and matches.num else None
    if one is None or recorded is None:
        return None
    steps = tuple(_with_last(step, one) for step in recorded.steps)
    after = replayed(recorded, replace(recorded, steps=steps))
    where = Where(one.file, one.line, one.function, code=one.code or None)
    whole = sum(map(len, (p.collectives for p in ranks))) / len(matches.rank)  # what was not matched saves as much
    return ReducedSums(one, where, after.saved_ns * whole)


def _is_reduced(kind: CollectiveKind, one: Reduced) -> bool:
    """Return whether collectives of a kind are such reductions."""
    wrapper = "fsdp-scatter" if one.name == "reduce_scatter" else "ddp-bucket"
    return kind.purpose == wrapper if one.in_backward else kind.name == one.name and kind.purpose != wrapper


def _with_last(step: Step, one: Reduced) -> Step:
    """Return a step with only the last of these reductions."""
    mine = [i for i, c in enumerate(step.collectives) if _is_reduced(c.kind, one)]
    gone = set(mine[: round(len(mine) * one.share)])
    return replace(step, collectives=tuple(c for i, c in enumerate(step.collectives) if i not in gone))

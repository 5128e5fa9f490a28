"""What to compute again in the backward pass, so that a step fits into less memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.dataflow.kept import Bytes, KeptMemory

__all__ = ["Checkpoint", "checkpoints"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What to compute again, one after the other."""

    number: int  # of the calls given
    freed_bytes: int  # by which the step's peak falls
    peak_bytes: int  # then


def checkpoints(held: Bytes, kept: Sequence[KeptMemory], times: Sequence[float], most: int) -> list[Checkpoint]:
    """Return what to compute again until at most ``most`` bytes are held: next what lowers the peak most for its time.

    The list is as long as it can be if that many bytes cannot be reached. ``times`` are those of the calls; those of
    which none is known are left out. A call that includes chosen ones can replace them.
    """
    chosen: list[int] = []
    members = [frozenset(one.operators) for one in kept]
    choice: list[int] | None = chosen
    while choice is not None and held.max(initial=0) > most:
        choice = _next(held, kept, times, members, chosen)
        if choice is not None:
            held = held + _change(held, kept, choice) - _change(held, kept, chosen)
            chosen = choice
    for one in tuple(chosen):
        without = held - kept[one].over(len(held))
        if without.max(initial=0) <= most:
            held, chosen = without, [each for each in chosen if each != one]
    return _in_turn(held - _change(held, kept, chosen), kept, chosen)


def _next(
    held: Bytes,
    kept: Sequence[KeptMemory],
    times: Sequence[float],
    members: Sequence[frozenset[int]],
    chosen: list[int],
) -> list[int] | None:
    """Return the chosen calls with one more, None if none lowers the memory where it is highest."""
    moment, peak = int(held.argmax()), int(held.max())
    offers = []
    for i, mine in enumerate(members):
        met = [each for each in chosen if not mine.isdisjoint(members[each])]
        time = times[i] - sum(times[each] for each in met)
        if times[i] > 0 and all(members[each] < mine for each in met):
            less = sum(kept[each].at(moment) for each in met) - kept[i].at(moment)
            if less > 0:
                offers.append((less / max(time, 1.0), less, max(time, 1.0), i, met))
    best, found = (0.0, 0.0), None
    for bound, _, time, i, met in sorted(offers, key=lambda offer: offer[:2], reverse=True):
        if bound < best[0]:
            break
        then = held + kept[i].over(len(held)) - _change(held, kept, met)
        rating = ((peak - int(then.max())) / time, bound)
        if rating > best:
            best, found = rating, [each for each in chosen if each not in met] + [i]
    return found


def _change(held: Bytes, kept: Sequence[KeptMemory], chosen: Sequence[int]) -> Bytes:
    return sum((kept[each].over(len(held)) for each in chosen), held * 0)


def _in_turn(held: Bytes, kept: Sequence[KeptMemory], chosen: Sequence[int]) -> list[Checkpoint]:
    found = []
    for each in chosen:
        before, held = int(held.max()), held + kept[each].over(len(held))
        found.append(Checkpoint(each, before - int(held.max()), int(held.max())))
    return found

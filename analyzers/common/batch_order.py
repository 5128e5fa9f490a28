"""What the training process computes to choose the samples of its batches.

The sampler and the batch sampler run inside the loader's ``__next__``, in the process that trains, whether that process
or workers load what they choose.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import seen_during
from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import contains, distinct, total
from diagnose.model.locations import FRAME, INSTALLED
from diagnose.tables import Tables
from diagnose.tables.names import LOADER_NEXT

_LOADER = r"torch/utils/data/dataloader\.py\(\d+\): "
_NEXT, _CHOOSES = re.compile(f"{_LOADER}__next__$"), re.compile(f"{_LOADER}_next_index$")
_BEGINS = re.compile(f"{_LOADER}(_get_iterator|_reset)$")
MIN_LINE_SAMPLES = 8  # within loading: of fewer one line has most by chance


class BatchOrder(NamedTuple):
    """What of loading is the sampler's; nothing where Python frames do not show it."""

    places: frozenset[tuple[str, int]] = frozenset()  # file and line, as samples have them
    loading: frozenset[tuple[str, str]] | None = None  # functions that run within loading; None: not known
    share: float = 0.0  # of loading


def batch_order(t: Tables) -> BatchOrder:
    """Return the sampled lines outside torch that choose samples, and the share of loading that is spent at them.

    Where another function of that name stands in the same file, as another class's ``__iter__``, the lines are those of
    the sampler's own.
    """
    if not len(_frames(t, _NEXT)):
        return BatchOrder()
    loading, _ = _functions_in(t, _NEXT)
    chooses, others = _functions_in(t, _CHOOSES)
    samples, run = t.capture.samples, t.capture.run
    sampled = {*(samples.places if samples else ()), *(at for path in (run.paths if run else ()) for at in path)}
    known = t.capture.known.loader.chosen_by
    functions = {(file, function) for file, _, function in sampled}
    # The profiler cuts folders off the files that samples have whole.
    mine, shared, within = (
        {at for at in functions if any(at[1] == name and f"/{at[0]}".endswith(f"/{file}") for file, name in of)}
        for of in (chooses, others, loading)
    )
    own = {(of, line) for of, first, last, _ in known for line in range(first, last + 1)}
    chosen = {place for place in sampled if place[::2] in mine}
    places = {place[:2] for place in chosen if place[::2] not in shared or place[:2] in own}
    seen = seen_during(t, t.covering(t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))))
    if places and seen.total() >= MIN_LINE_SAMPLES:
        share = sum(num for place, num in seen.items() if place[:2] in places) / seen.total()
    else:  # or it is a library's
        choosing, loaded = (total(t.named.covering(_frames(t, name))) for name in (_CHOOSES, _NEXT))
        share = choosing / max(loaded, 1) if chooses else 0.0
    return BatchOrder(frozenset(places), frozenset(within), share)


def _frames(t: Tables, name: re.Pattern[str]) -> Rows:
    return t.named.in_window(t.named.calls(name, Kind.PYTHON))


def _functions_in(t: Tables, frame: re.Pattern[str]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return file and name of the functions outside torch that began inside calls of a function, and of the others."""
    named = t.named
    rows, events = named.host_rows(Kind.PYTHON), named.trace.events
    inside = contains(named.covering(named.calls(frame, Kind.PYTHON)), events.start[rows])
    return _outside_torch(named, events.name[rows[inside]]), _outside_torch(named, events.name[rows[~inside]])


def _outside_torch(t: Tables, names: npt.NDArray[np.int32]) -> set[tuple[str, str]]:
    found = (FRAME.match(t.trace.names[name]) for name in distinct(names).tolist())
    known = ((INSTALLED.sub("", match["file"]), match["function"]) for match in found if match)
    return {at for at in known if not at[0].startswith("torch/")}


def makes_iterators(t: Tables) -> float | None:
    """Return for which share of the batches the loader made an iterator, None where frames do not show it."""
    num, made = (len(t.named.calls(name, Kind.PYTHON)) for name in (_NEXT, _BEGINS))
    return made / num if num else None

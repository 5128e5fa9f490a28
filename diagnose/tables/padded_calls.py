"""Calls of modules whose inputs end in positions that are padding in every row, and what these take."""

from __future__ import annotations

import numpy as np

from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, distinct, total, union
from diagnose.model.records import PaddingRecord
from diagnose.tables import Tables, shared_table
from diagnose.tables.matching_operators import matched_steps
from diagnose.tables.repeated_calls import call_of, extent

__all__ = ["PaddedCalls", "padded_calls"]

MIN_LENGTHS = 2  # different ones among the calls, or among rows: columns that none ever uses are features


class PaddedCalls(NamedTuple):
    """The calls of one module whose inputs are padded; figures are means over calls."""

    module: str  # its class
    host: Intervals  # of the calls and of their functions in the backward pass
    positions: float
    used: float

    @property
    def share(self) -> float:
        """Return the share of the positions that are padding in every row."""
        return 1 - self.used / self.positions


@shared_table
def padded_calls(t: Tables) -> PaddedCalls | None:
    """Return the module whose padding takes longest, None where no inputs are padded."""
    info, named = t.capture.info, t.named
    if info is None or t.capture.attribution is None or not named.trace.epoch_ns:
        return None
    found = [one for record in info.padding if (one := _of_record(t, record)) is not None]
    return max(found, key=lambda one: one.share * total(one.host), default=None)


def _of_record(t: Tables, record: PaddingRecord) -> PaddedCalls | None:
    sizes = {len(column) for column in (record.began_ns, record.ended_ns, record.positions, record.used)}
    different = max(len(set(record.used)), *record.lengths, 0)
    if len(sizes) > 1 or different < MIN_LENGTHS or not all(record.positions):
        return None
    events, epoch_ns = t.named.trace.events, t.named.trace.epoch_ns
    begins, ends = (np.array(column, np.int64) - epoch_ns for column in (record.began_ns, record.ended_ns))
    parts = [EMPTY]
    for step in matched_steps(t):
        of = call_of(begins, ends, (events.start[step.named] + events.end[step.named]) // 2)
        parts += [extent(t, step.rows[of == i])[0] for i in distinct(of[of >= 0]).tolist()]
    host = union(*parts)
    if not len(host.start):
        return None
    return PaddedCalls(record.module, host, float(np.mean(record.positions)), float(np.mean(record.used)))

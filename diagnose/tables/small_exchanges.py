"""Collectives of a host backend that are many and small: their number costs more than their bytes.

The recorded data flow has each of them with its line, its module and its bytes. FSDP gathers and reduces once for each
module that it is applied to. If that is a single layer, the layers of a block could share one. A line that calls one
collective after the other could do with one for all.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from diagnose.model.dataflow import Frame, Operator
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, subtract
from diagnose.model.shapes import num_elements
from diagnose.tables import Tables
from diagnose.tables.collectives import MIN_COLLECTIVES_PER_STEP
from diagnose.tables.names import HOST_BACKEND, matching

MAX_SMALL_BYTES = 1 << 20  # a link of 1 GB/s carries them in the time that starting a collective of the host takes
_FSDP = re.compile(r"^FSDP::|RegisterPostBackwardFunctionBackward$")
_NUMBERED = re.compile(r"^(.+\.\d+)\.")


class SmallExchanges(NamedTuple):
    """What is exchanged in small parts, in a step."""

    num: int
    num_bytes: float  # of one, mean
    fewer: float  # that would do, as a share of them
    is_sharded: bool  # by FSDP
    units: tuple[str, ...]  # modules that FSDP is applied to, which hold no other
    place: Frame | None  # of the most of them


def small_exchanges(t: Tables) -> SmallExchanges | None:
    """Return the small collectives of a step without a device, None where they are few or large."""
    flow = t.capture.dataflow
    if flow is None or t.device_id >= 0:
        return None
    step = max((one.step for one in flow.operators), default=0)
    ones = [one for one in flow.operators if one.step == step]
    found = [one for one in ones if one.is_collective]
    inner = {one.module.rpartition(".")[0] for one in ones}
    holds = {".".join(parts[:n]) for each in inner for parts in [each.split(".")] for n in range(1, len(parts) + 1)}
    shards = [one for one in found if one.module and re.search("_(allgather|reduce_scatter)_base_", one.name)]
    leaves = [one for one in shards if one.module not in holds and "." in one.module]
    if len(leaves) > MIN_COLLECTIVES_PER_STEP:
        units = tuple(dict.fromkeys(one.module for one in leaves))
        blocks = {numbered[1] if (numbered := _NUMBERED.match(unit)) else "" for unit in units}
        return _if_small(leaves, len(blocks) / len(units), units)
    places = Counter(one.place for one in found if one not in shards and one.phase != "backward")
    place, num = next(iter(places.most_common(1)), (None, 0))
    if num <= MIN_COLLECTIVES_PER_STEP:
        return None
    return _if_small([one for one in found if one.place == place], 1 / num, ())


def _if_small(ones: list[Operator], fewer: float, units: tuple[str, ...]) -> SmallExchanges | None:
    sizes = [4 * max((num_elements(use.shape) for use in one.reads), default=0) for one in ones]
    place = Counter(one.place for one in ones).most_common(1)[0][0]
    mean = float(np.mean(sizes))
    return SmallExchanges(len(ones), mean, fewer, bool(units), units, place) if mean < MAX_SMALL_BYTES else None


def exchange_times(t: Tables, small: SmallExchanges) -> Intervals:
    """Return when the stepping thread is in what they take: FSDP's own work for them too."""
    if small.is_sharded:
        return t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _FSDP))
    exchanged = t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    return subtract(exchanged, t.in_ops) if len(exchanged.start) else EMPTY

"""From the parsed events of one kind to the values of its columns, as lists."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from diagnose.model.events import Kind
from diagnose.trace_reader.device_ids import DeviceStreamIds
from diagnose.trace_reader.intern import Names, Texts, Threads
from diagnose.trace_reader.schema import Args

__all__ = ["Fields", "Values"]

Values = dict[str, list[Any]]

_CPU = 0  # torch's DeviceType
_ON_DEVICE = frozenset({Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC})
_CORRELATED = _ON_DEVICE | {Kind.RUNTIME}


class Fields:
    """Numbers strings, threads and places, and looks up the numbers for every event."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Threads()
        self._texts = Texts(self.names)
        self._device_streams = DeviceStreamIds()
        self._grids = _Grids({b"": -1})

    def values(self, kind: Kind, events: list[Any]) -> Values:
        """Return the columns of these events, all but their times; columns that say nothing are left out."""
        names, args = self.names, [event.args for event in events]
        values: Values = {"name": [names[event.name] for event in events]}
        if kind in _ON_DEVICE:
            ids = self._device_streams
            found = [ids[a.device, a.stream, event.pid, event.tid] for event, a in zip(events, args, strict=True)]
            values["device"] = [device for device, _ in found]
            values["stream"] = [stream for _, stream in found]
        else:
            threads = self.threads
            values["thread"] = [threads[event.pid, event.tid] for event in events]
        if kind in _CORRELATED:
            values["correlation"] = [a.correlation for a in args]
        if kind in _MORE:
            values |= _MORE[kind](self, args)
        return values

    def _of_op(self, args: list[Args]) -> Values:
        texts = self._texts
        return {
            "shapes": [texts[bytes(a.input_dims)] for a in args],
            "types": [texts[bytes(a.input_types)] for a in args],
            "sequence": [a.sequence for a in args],
            **self._of_values(args),
            **self._of_collective(args),
        }

    def _of_values(self, args: list[Args]) -> Values:
        if not (args[0].input_values or args[-1].input_values):  # an exporter writes them for all operators or for none
            return {}
        texts = self._texts
        return {"values": [texts[bytes(a.input_values)] for a in args]}

    def _of_kernel(self, args: list[Args]) -> Values:
        grids = self._grids
        return {"grid": [grids[bytes(a.grid)] for a in args], **self._of_collective(args)}

    def _of_collective(self, args: list[Args]) -> Values:
        told = [a.collective or a.stack for a in args]
        if not any(told):
            return {}
        names = self.names
        return {
            "detail": [names[_detail(a)] if text else -1 for a, text in zip(args, told, strict=True)],
            "size": [a.num_elements if a.collective else -1 for a in args],
        }

    def _of_copy(self, args: list[Args]) -> Values:
        return {"size": [a.bytes for a in args]}

    def _of_allocation(self, args: list[Args]) -> Values:
        return {
            "size": [a.allocated for a in args],
            "device": [a.device_id if a.device_type != _CPU else -1 for a in args],
            "correlation": [a.address for a in args],
            "sequence": [a.total_allocated for a in args],
            "awaits": [a.total_reserved for a in args],
        }

    def _of_wait(self, args: list[Args]) -> Values:
        return {"awaits": [a.awaits for a in args]}


_MORE: Final[Mapping[Kind, Callable[[Fields, list[Args]], Values]]] = {
    Kind.OP: Fields._of_op,
    Kind.KERNEL: Fields._of_kernel,
    Kind.RUNTIME: Fields._of_copy,
    Kind.MEMCPY: Fields._of_copy,
    Kind.MEMSET: Fields._of_copy,
    Kind.MEMORY: Fields._of_allocation,
    Kind.SYNC: Fields._of_wait,
}


class _Grids(dict[bytes, int]):
    """JSON text of a kernel's grid to its number of blocks."""

    def __missing__(self, raw: bytes) -> int:
        try:
            blocks = math.prod(int(side) for side in json.loads(raw))
        except (ValueError, TypeError, OverflowError, RecursionError):
            blocks = -1
        self[raw] = blocks if -1 < blocks < 2**31 else -1
        return self[raw]


def _detail(args: Args) -> str:
    return f"{args.collective}|{args.dtype}|{args.group_size}" if args.collective else args.stack

"""Where a device event ran: its device and stream, however the exporter wrote them."""

from __future__ import annotations

import re

__all__ = ["DeviceStreamIds"]

Key = tuple["int | str", "int | str", "int | str", "int | str"]

_LAST_NUMBER = re.compile(r"-?\d+$", re.ASCII)
_MAX_LABEL_CHARS = 40  # characters of "stream 7" that are looked at; Python refuses to convert thousands of digits
_MAX_DEVICE = 32_767  # Events.device is int16
_MAX_STREAM = 2**31 - 1  # cuda_sync writes 2**32 - 1 for "no stream"


class DeviceStreamIds(dict[Key, tuple[int, int]]):
    """(args.device, args.stream, pid, tid) to (device, stream), -1 where it is not recorded.

    The pid and tid of a device event stand in where its arguments name no device and no stream; old exporters
    write the tid as "stream 7".
    """

    def __missing__(self, key: Key) -> tuple[int, int]:
        device, stream, pid, tid = (_number(value) for value in key)
        ids = (
            _within(device if device >= 0 else pid, _MAX_DEVICE),
            _within(stream if key[1] != "" else tid, _MAX_STREAM),
        )
        self[key] = ids
        return ids


def _number(value: int | str) -> int:
    if isinstance(value, int):
        return value
    found = _LAST_NUMBER.search(value.strip()[-_MAX_LABEL_CHARS:])
    return int(found.group()) if found else -1


def _within(value: int, largest: int) -> int:
    return value if 0 <= value <= largest else -1

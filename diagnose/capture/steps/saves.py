"""What `torch.save` is given: it writes the whole storage of a tensor, also of one that shows a part of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from diagnose.capture.record.sampler import place_of, users_frames
from diagnose.model.records import SaveRecord


class Saves:
    """Adds up what each line of the script saves."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, str], SaveRecord] = {}

    @property
    def records(self) -> tuple[SaveRecord, ...]:
        """Return what each line has saved."""
        return tuple(self._lines.values())

    def saved(self, state: object, took_ns: int) -> None:
        """Take notice of a file that has just been written."""
        frame = next(users_frames(sys._getframe(1)), None)
        if frame is None:
            return
        place = place_of(frame)
        try:
            record = _measured(state, place, took_ns)
        except Exception:  # objects of the script's own classes
            return
        before = self._lines.get(place)
        if before is not None:
            record = msgspec.structs.replace(
                record,
                num=before.num + 1,
                took_ns=before.took_ns + took_ns,
                spare_ns=before.spare_ns + record.spare_ns,
            )
        self._lines[place] = record


def _measured(state: object, place: tuple[str, int, str], took_ns: int) -> SaveRecord:
    whole: dict[int, int] = {}
    shown: dict[int, dict[object, int]] = {}
    largest: dict[int, tuple[int, str]] = {}
    for name, tensor in _tensors(state):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, tensor.numel() * tensor.element_size()
        whole[key] = storage.nbytes()
        shown.setdefault(key, {})[tensor.storage_offset(), tensor.shape, tensor.stride()] = size
        largest[key] = max(largest.get(key, (-1, "")), (size, name))
    spare = {key: max(size - sum(shown[key].values()), 0) for key, size in whole.items()}
    worst = max(spare, key=lambda key: spare[key], default=None)
    total = sum(whole.values())
    return SaveRecord(
        file=place[0],
        line=place[1],
        function=place[2],
        num=1,
        took_ns=took_ns,
        spare_ns=round(took_ns * sum(spare.values()) / max(total, 1)),
        num_bytes=total,
        spare_bytes=sum(spare.values()),
        name=largest[worst][1] if worst is not None else "",
        view_bytes=sum(shown[worst].values()) if worst is not None else 0,
        storage_bytes=whole[worst] if worst is not None else 0,
    )


def _tensors(state: object) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in what is saved, each once, with the names that lead to them."""
    import torch

    left: list[tuple[str, object]] = [("", state)]
    seen, num = set[int](), 0
    while left and num < 100_000:  # of one file that are looked at
        name, one = left.pop()
        if id(one) in seen:
            continue
        if isinstance(one, torch.Tensor):
            seen.add(id(one))
            num += 1
            if one.layout == torch.strided and one.device.type != "meta":
                yield name, one
        elif isinstance(one, Mapping | list | tuple | torch.nn.Module):
            seen.add(id(one))
            left += [(f"{name}.{key}".lstrip("."), each) for key, each in _parts(one)]


def _parts(one: Any) -> Iterator[tuple[object, object]]:
    import torch

    if isinstance(one, torch.nn.Module):
        yield from one.state_dict(keep_vars=True).items()
    elif isinstance(one, Mapping):
        yield from one.items()
    else:
        yield from enumerate(one)

"""What ``rocprofv3`` of ROCm writes as SQLite (``--output-format rocpd``), read through the views that it brings.

A dispatch and the call that made it share a ``stack_id``. Ranges of roctx are operators where PyTorch has pushed them,
and annotations otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diagnose.errors import InputError
from diagnose.model.arrays import Ints
from diagnose.model.events import Device, Kind, Note
from diagnose.trace_reader.databases import Base, Profile, mapped, numbers

RECORD = "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace --output-format rocpd"
_KERNELS, _COPIES, _REGIONS, _AGENTS = "kernels", "memory_copies", "regions", "rocpd_info_agent"
_WAYS = {  # of copies, with torch.profiler's words for them
    "HOST_TO_DEVICE": "HtoD (Host -> Device)",
    "DEVICE_TO_HOST": "DtoH (Device -> Host)",
    "DEVICE_TO_DEVICE": "DtoD (Device -> Device)",
    "HOST_TO_HOST": "HtoH (Host -> Host)",
}


class Rocpd(Profile):
    """A database of rocprofv3."""

    @classmethod
    def is_of(cls, base: Base) -> bool:
        """Return whether it has the view of dispatches."""
        return {"name", "stack_id", "agent_type_index"} <= base.columns(_KERNELS)

    def processes(self) -> dict[int, int]:
        """Return the ids of the processes that used a GPU, with the first device of each."""
        found = dict(self.base.rows(f"SELECT pid, MIN(agent_type_index) FROM {_KERNELS} GROUP BY pid"))
        if not found:
            raise InputError(f"{self.base.name} holds no kernel. Record with {RECORD}.")
        return found

    def load(self) -> None:
        """Append the events of the wanted process."""
        self._regions()
        columns = ("name", "workgroup_x", "workgroup_y", "workgroup_z", "grid_x", "grid_y", "grid_z")
        for start, end, task, (names, *sizes) in self._tasks(_KERNELS, "agent_type_index", columns):
            groups, items = [[numbers(side) for side in three] for three in (sizes[:3], sizes[3:])]
            x, y, z = [-(-side // np.maximum(group, 1)) for side, group in zip(items, groups, strict=True)]
            blocks = x * y * z
            grid = np.where((blocks > 0) & (blocks < 2**31), blocks, -1)
            self.put(Kind.KERNEL, start, end, name=self._named(names), grid=grid, **task)
        more = ("name", "size", "src_agent_type_index", "src_agent_type")
        for start, end, task, (names, size, *source) in self._tasks(_COPIES, "dst_agent_type_index", more):
            of_gpu = np.array([kind == "GPU" for kind in source[1]], np.bool_)  # a copy to the host runs there
            ways = np.array([self.number(_copy_name(name)) for name in names], np.int64)
            device = np.where(of_gpu, numbers(source[0]), task["device"])
            self.put(Kind.MEMCPY, start, end, name=ways, size=numbers(size), **{**task, "device": device})

    def _of_process(self) -> str:
        return f"WHERE pid = {self.process}" if self.process else ""

    def _named(self, texts: Sequence[Any]) -> Ints:
        return numbers([self.number(str(text)) for text in texts])

    def _tasks(
        self, table: str, device: str, columns: Sequence[str]
    ) -> Iterator[tuple[Ints, Ints, dict[str, Ints], list[tuple[Any, ...]]]]:
        """Yield start, end and place of what ran on a device, and other columns."""
        shared = ("start", "end", device, "stream_id", "queue_id", "stack_id")
        for block in self.base.blocks(table, (*shared, *columns), self._of_process()):
            start, end, on, stream, queue, call = map(numbers, block[: len(shared)])
            where = np.where(stream > 0, stream, queue)  # stream 0: none was recorded
            yield start, end, {"device": on, "stream": where, "correlation": call}, block[len(shared) :]

    def _regions(self) -> None:
        """Append calls of the runtime, and ranges, whose text newer releases keep beside the call's name."""
        columns = ("start", "end", "pid", "tid", "stack_id", "category", "name", "extdata")
        threads = self.rows.fields.threads
        for block in self.base.blocks(_REGIONS, columns, self._of_process()):
            start, end, pid, tid, call = map(numbers, block[:5])
            thread = mapped(pid << 32 | tid, lambda each: threads[each >> 32, each & 0xFFFFFFFF])
            category, name, extra = block[5:]
            is_range = np.array(["MARKER" in str(each) for each in category], np.bool_)
            is_call = ~is_range & np.array(["HSA" not in str(each) for each in category], np.bool_)
            self.put(
                Kind.RUNTIME,
                start[is_call],
                end[is_call],
                name=self._named([text for text, chosen in zip(name, is_call, strict=True) if chosen]),
                thread=thread[is_call],
                correlation=call[is_call],
            )
            texts = [_text(text, more) for text, more, chosen in zip(name, extra, is_range, strict=True) if chosen]
            self.put_ranges(start[is_range], end[is_range], thread[is_range], texts)

    def devices(self) -> Iterator[Device]:
        """Yield the GPUs under their numbers among GPUs."""
        there = self.base.columns(_AGENTS)
        name = "product_name" if "product_name" in there else "name"
        if not {"type", "type_index", name} <= there:
            return
        for number, text in self.base.rows(f"SELECT type_index, {name} FROM {_AGENTS} WHERE type = 'GPU'"):
            yield Device(int(number), str(text or ""))

    def epoch_ns(self, first_ns: int) -> int:
        """Return 0: times are of the machine's own clock."""
        del first_ns
        return 0

    def notes(self) -> Iterator[Note]:
        """Say what the file lacks."""
        yield Note(
            "A profile of rocprofv3 has no Python frames, no allocations and no sizes of collectives: what needs them "
            "is left out."
        )


def _copy_name(name: object) -> str:
    way = _WAYS.get(str(name).removeprefix("MEMORY_COPY_"))
    return f"Memcpy {way}" if way else "Memcpy"


def _text(name: object, extra: object) -> str:
    """Return what a range says: its message if the file has one, else its name."""
    if isinstance(extra, str) and '"message"' in extra:
        try:
            return str(json.loads(extra)["message"])
        except (ValueError, KeyError, TypeError):
            return str(name)
    return str(name)

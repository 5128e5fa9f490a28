"""Documents of Kineto on AMD's devices as rocprofv3 would have written the same run: a database, a process for each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from simulation.nsight import pushed

__all__ = ["write_rocpd"]

_TABLES = {  # the columns that are read of each view
    "kernels": "name, pid, tid, agent_type_index, stream_id, queue_id, start, end, grid_x, grid_y, grid_z, "
    "workgroup_x, workgroup_y, workgroup_z, stack_id",
    "memory_copies": "name, pid, tid, dst_agent_type_index, dst_agent_type, src_agent_type_index, src_agent_type, "
    "stream_id, queue_id, start, end, size, stack_id",
    "regions": "category, name, pid, tid, start, end, stack_id, extdata",
    "rocpd_info_agent": "type, type_index, product_name",
}
_WAYS = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}


def write_rocpd(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the documents of a run's ranks into one database, each as a process of its own."""
    with closing(sqlite3.connect(path)) as base:
        for table, columns in _TABLES.items():
            base.execute(f"CREATE TABLE {table} ({columns})")
        for gpu in documents[0].get("deviceProperties", ()):
            _put(base, "rocpd_info_agent", "GPU", gpu["id"], gpu["name"])
        for rank, document in enumerate(documents):
            events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
            zero = min(event["ts"] for event in events)
            for event in events:
                _event(base, event, zero, 1000 + rank)
        base.commit()


def _put(base: sqlite3.Connection, table: str, *values: Any) -> None:
    base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in values)})", values)


def _event(base: sqlite3.Connection, event: Mapping[str, Any], zero: float, pid: int) -> None:
    args, category = event.get("args", {}), event.get("cat")
    start = round((event["ts"] - zero) * 1000)
    span = start, start + round(event["dur"] * 1000)
    call = args.get("correlation", args.get("External id", 0))
    if category in ("cpu_op", "user_annotation"):
        said = json.dumps({"message": pushed(event["name"], args)})
        tid = int(event["tid"])
        _put(base, "regions", "MARKER_CORE_RANGE_API", "roctxThreadRangeA", pid, tid, *span, 0, said)
    elif category in ("cuda_runtime", "cuda_driver"):
        _put(base, "regions", "HIP_RUNTIME_API_EXT", event["name"], pid, int(event["tid"]), *span, call, "{}")
    elif category == "kernel":
        groups = args.get("block", (1, 1, 1))
        items = [a * b for a, b in zip(args.get("grid", (0, 0, 0)), groups, strict=True)]
        place = args["device"], args["stream"] + 1, 1
        _put(base, "kernels", event["name"], pid, 1, *place, *span, *items, *groups, call)
    elif category == "gpu_memcpy":
        way = event["name"].split()[1]
        ends = [word for end in (way[-1], way[0]) for word in ((args["device"], "GPU") if end == "D" else (0, "CPU"))]
        name = f"MEMORY_COPY_{_WAYS[way]}"
        _put(base, "memory_copies", name, pid, 1, *ends, args["stream"] + 1, 1, *span, args.get("bytes", 0), call)

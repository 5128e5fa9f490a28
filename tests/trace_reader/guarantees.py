"""What holds for every trace that was read; ``diagnose.trace_reader.table`` has the list in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import among, distinct
from diagnose.trace_reader.fields import printable
from diagnose.trace_reader.schema import DEVICE_KINDS
from diagnose.trace_reader.table import MAX_MOVED_BYTES, MAX_SILENCE_NS, ON_HOST, implausible_marks, is_huge


def check_trace(trace: Trace) -> None:
    """Verify what this module guarantees; tests call it on everything that was read.

    Raises:
        AssertionError: a guarantee is broken; the message holds all that are.
    """
    broken = list(_broken(trace))
    if broken:
        raise AssertionError("; ".join(broken))


def _broken(trace: Trace) -> Iterator[str]:
    e = trace.events
    num = len(e)
    if not num:
        yield "there is no event"
        return
    steady = e.start[1:] - e.start[:-1]
    marks, unfit = implausible_marks(
        {name: getattr(e, name) for name in ("start", "end", "kind", "name", "thread")}, trace.names
    )
    tasks = np.flatnonzero(e.cause >= 0)
    calls = e.cause[tasks]
    texts = (
        *trace.names,
        *(text for t in trace.threads for text in (t.pid, t.tid, t.name)),
        *(d.name for d in trace.devices),
    )
    promises = {
        "columns are as long as one another": len({len(getattr(e, name)) for name in type(e).__slots__}) == 1,
        "time begins at zero": int(e.start[0]) == 0,
        "rows are sorted": bool((steady >= 0).all()),
        "no event ends before it starts": bool((e.end >= e.start).all()),
        "no event starts apart": bool((steady <= MAX_SILENCE_NS).all()),
        "no event ends apart": int(e.end.max()) <= int(e.start[-1]) + MAX_SILENCE_NS,
        "kinds are known": int(e.kind.max()) < len(Kind),
        "host events have a thread": not ((e.thread < 0) & ON_HOST[e.kind]).any(),
        "threads are in range": int(e.thread.max()) < len(trace.threads) and int(e.thread.min()) >= -1,
        "names are in range": int(e.name.min()) >= 0
        and all(_in_range(getattr(e, c), trace.names) for c in _TEXT_COLUMNS),
        "devices and streams are ids": int(e.device.min()) >= -1 and int(e.stream.min()) >= -1,
        "causes are calls": bool((calls < num).all()) and bool((e.kind[calls] == Kind.RUNTIME).all()),
        "causes are of tasks": bool(among(e.kind[tasks], DEVICE_KINDS).all()),
        "causes share the id": bool((e.correlation[calls] == e.correlation[tasks]).all()),
        "sizes are bounded": int(e.size.min()) >= -MAX_MOVED_BYTES and int(e.size.max()) <= MAX_MOVED_BYTES,
        "shapes are bounded": not any(
            is_huge(trace.names[text]) for text in distinct(e.shapes[e.shapes >= 0]).tolist()
        ),
        "step marks are steps": marks is None and not unfit,
        "names can be shown": all(text == printable(text) for text in texts),
        "ranks are numbers": trace.rank >= 0 and trace.world_size >= 1,
        "the clock fits": trace.epoch_ns >= 0 and trace.epoch_ns + int(e.end.max()) < 2**63,
    }
    yield from (f"not so: {promise}" for promise, holds in promises.items() if not holds)


_TEXT_COLUMNS = ("name", "shapes", "types", "values", "detail")


def _in_range(rows: npt.NDArray[np.int32], names: Sequence[str]) -> bool:
    return int(rows.max()) < len(names) and int(rows.min()) >= -1

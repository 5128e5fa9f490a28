"""What torch.compile did: graphs, breaks, what was compiled again and why, read from its own records."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo import utils

__all__ = ["Break", "CompileLog", "compile_log"]


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the graph ends and Python takes over."""

    reason: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return place, source line and reason."""
        return f"{self.file}:{self.line}: {linecache.getline(self.file, self.line).strip()} ({self.reason})"


@dataclass
class CompileLog:
    """What was compiled within the block, known once it is left.

    ``recompiles``: the guard that failed, for each frame that was compiled again. ``seconds``: spent compiling.
    ``cache_hits``: graphs whose kernels came from the cache on disk.
    """

    graphs: int = 0
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[str, ...] = ()
    seconds: float = 0.0
    cache_hits: int = 0
    _before: tuple[Any, ...] = field(default=(), repr=False)


@contextmanager
def compile_log() -> Iterator[CompileLog]:
    """Record what is compiled within the block, by whatever is compiled in this process."""
    log = CompileLog()
    graphs, hits, num_breaks = _graphs(), _cache_hits(), len(utils.graph_break_reasons)
    earlier = {id(metrics): metrics for metrics in utils.get_compilation_metrics()}  # held, so that no id comes back
    try:
        yield log
    finally:
        new = [m for m in utils.get_compilation_metrics() if id(m) not in earlier]
        log.graphs, log.cache_hits = _graphs() - graphs, _cache_hits() - hits
        log.breaks = _distinct(utils.graph_break_reasons[num_breaks:])
        reasons = (getattr(metrics, "recompile_reason", None) for metrics in new)
        log.recompiles = tuple(_first_line(reason.partition(": ")[2] or reason) for reason in reasons if reason)
        log.seconds = sum(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0 for metrics in new)


def _graphs() -> int:
    return int(utils.counters["stats"]["unique_graphs"])


def _cache_hits() -> int:
    return int(utils.counters["inductor"]["fxgraph_cache_hit"])


def _distinct(reasons: list[Any]) -> tuple[Break, ...]:
    found: dict[Break, None] = {}
    for entry in reasons:
        if entry.user_stack:
            place = entry.user_stack[-1]
            found[Break(_first_line(entry.reason), place.filename, place.lineno or 0)] = None
    return tuple(found)


def _first_line(text: str) -> str:
    return str(text).strip().partition("\n")[0].strip()

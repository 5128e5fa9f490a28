"""A process that runs cases one after the other: a line in names a case, a line out holds what is wrong with it."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fuzzing.cases import Case, Inputs, make
from fuzzing.checks import MAX_MB, problems
from fuzzing.running import base_reports, rss_mb, run_case, watch_rules

__all__ = ["Result", "scratch_folder", "serve"]

ADDRESS_SPACE = (
    6 << 30
)  # bytes: far above what a small input needs with NumPy's threads mapped, and below the machine's


@dataclass(frozen=True)
class Result:
    """One case: what it was, what is wrong with it, and what it took."""

    kind: str
    index: int
    problems: list[tuple[str, str]]
    code: object = None
    seconds: float = 0.0
    rss_mb: float = 0.0
    argv: tuple[str, ...] = ()
    what: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Read a worker's line."""
        data = json.loads(line)
        found = [(kind, details) for kind, details in data.pop("problems")]
        return cls(problems=found, argv=tuple(data.pop("argv")), what=tuple(data.pop("what")), **data)


def scratch_folder() -> Path | None:
    """Return a folder in memory where there is one: thousands of small files are written."""
    memory = Path("/dev/shm")  # folders within are made by tempfile
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else None


def serve(seed: int, trace_folders: list[Path], *, limit_memory: bool = True) -> int:
    """Answer lines of standard input until it ends: {"kind", "index"} or {"file"}."""
    replies = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile() as strays:  # what is written past sys.stdout and sys.stderr
        os.dup2(strays.fileno(), 1)
        if limit_memory:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        watch_rules()
        inputs = Inputs.of(trace_folders, base_reports())
        _reply(replies, {"ready": True})
        written = 0
        for line in sys.stdin:
            asked = json.loads(line)
            case = _case(asked, seed, inputs)
            outcome = run_case(case)
            found = problems(case, outcome)
            size = os.fstat(strays.fileno()).st_size
            if size > written:
                found.append(("written past the streams", _text(strays.fileno(), written, size)))
                written = size
            shown = {"problems": found, "code": outcome.code, "seconds": outcome.seconds, "rss_mb": outcome.rss_mb}
            where = {"kind": asked.get("kind", "file"), "index": asked.get("index", 0)}
            _reply(replies, {**where, **shown, "argv": case.argv, "what": case.what})
            if rss_mb() > MAX_MB:  # the largest memory never falls: the next case needs a process of its own
                return 0
    return 0


def _case(asked: dict[str, Any], seed: int, inputs: Inputs) -> Case:
    if "file" in asked:
        return Case.from_json(Path(asked["file"]).read_text(encoding="utf-8"))
    return make(seed, asked["kind"], asked["index"], inputs)


def _text(file: int, start: int, end: int) -> str:
    return os.pread(file, min(end - start, 300), start).decode(errors="replace")


def _reply(replies: TextIO, data: dict[str, Any]) -> None:
    replies.write(json.dumps(data) + "\n")
    replies.flush()

"""Work for other processes: they import it by its name, so it stands in a module."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from diagnose.pipeline.rank_results import Cache, packed_both
from diagnose.trace_reader.inputs import RankFiles


def size_of(files: RankFiles) -> bytes:
    return str(Path(files.trace.path).stat().st_size).encode()


def process_of(files: RankFiles) -> bytes:
    return str(os.getpid()).encode()


def dying(marks: Path, times: int, files: RankFiles) -> bytes:
    """End the process the first ``times`` times for the file that is called 'deadly'."""
    if Path(files.trace.path).name == "deadly.json":
        died = len(list(marks.iterdir()))
        if died < times:
            (marks / str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return size_of(files)


def analysis_dying_once(marks: Path, files: RankFiles, *, cache: Cache, draw: bool) -> bytes:
    """Analyse a rank as a job does, but end the first process that is about to."""
    with suppress(FileExistsError):
        (marks / "died").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return packed_both(files, cache=cache, draw=draw)


def faulty(files: RankFiles) -> bytes:
    raise ZeroDivisionError("a fault")


def dying_once(marks: Path) -> partial[bytes]:
    return partial(dying, marks, 1)

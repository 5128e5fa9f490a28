"""Tests in two processes at once (``scripts/test -n 2``): those that take times, or start training, run alone.

A test that may share the machine holds a lock together with others; one that may not waits until it holds it alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE = ("capture", "e2e", "fixtures", "proof", "kernels/test_loader_tuning.py", "kernels/test_concurrent_samples.py")
TESTS = Path(__file__).parent / "tests"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let the test, with the fixtures that it sets up, wait for its turn."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    with _turn(run, alone=item.path.relative_to(TESTS).as_posix().startswith(ALONE)):
        return (yield)


@contextmanager
def _turn(run: str, *, alone: bool) -> Iterator[None]:
    import fcntl

    door, room = (Path(tempfile.gettempdir(), f"diagnose-tests-{run}-{name}") for name in ("door", "room"))
    with room.open("w") as inside:
        with door.open("w") as entering:  # who waits to be alone holds the door, so that nobody overtakes it
            fcntl.flock(entering, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(entering, fcntl.LOCK_UN)
        try:
            yield
        finally:  # closing would not do: processes that the test has forked, and left behind, hold the file open too
            fcntl.flock(inside, fcntl.LOCK_UN)

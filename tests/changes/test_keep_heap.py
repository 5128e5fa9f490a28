"""keep-heap: freed memory stays the process's own."""

import os
import subprocess
import sys

import pytest

from diagnose.changes.patches import memory

# Blocks of 24 MB, filled and freed: what comes after the first ones has faults only where they were given back.
LOOP = """
import torch
from diagnose.capture.steps.phases import minor_faults
from diagnose.changes.common.change import Log
from diagnose.changes.patches.memory import keep_heap

torch.set_num_threads(1)
log = Log()

def faults():
    before = minor_faults()
    for _ in range(8):
        blocks = [torch.empty(24 << 20, dtype=torch.uint8).fill_(1) for _ in range(2)]
        del blocks
    return minor_faults() - before

faults()
plain = faults()
keep_heap(log, {})
faults()
print(plain, faults(), log.done)
"""
PAGES = 2 * (24 << 20) // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_blocks_that_are_freed_are_used_again():
    # By default glibc may keep such blocks, too, by what lies behind them in the heap.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True, env=environment)
    plain, kept, log = done.stdout.split(maxsplit=2)
    assert int(plain) >= 8 * PAGES / 600  # even with pages of 2 MB
    assert int(kept) < int(plain) / 4
    assert log.strip() == "['malloc: blocks of up to 32 MB come from the heap, which keeps what is freed']"


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (object(), "its C library has no mallopt"),
        (type("Library", (), {"mallopt": staticmethod(lambda name, value: 0)}), "its C library takes no such setting"),
    ],
)
def test_another_library_is_left(patched, monkeypatch, library, why):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    log = patched("keep-heap")
    assert (log.done, log.refused) == ([], [f"the process: {why}"])

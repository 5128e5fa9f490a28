"""Page faults of this process that read nothing, and what one of them takes.

Memory that the C library gave back to the system comes back page by page: the first access to each page stops its
thread until the system has found a page and cleared it.
"""

from __future__ import annotations

import statistics
import sys
import time

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

__all__ = ["minor_faults", "page_fault_ns"]

NEW_BYTES = 40 << 20  # more than the C library keeps in its heap: it is new memory each time
MIN_FAULTS = 1000  # with large pages there are fewer, which take longer
REPETITIONS = 3


def minor_faults() -> int:
    """Return how many pages of this process came without a read from storage; 0 where no system counts them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource is not None else 0


def page_fault_ns() -> float | None:
    """Return what one takes where torch's threads fill new memory, with giving the page back, the median of a few.

    What filling itself takes, which a second time shows, is taken out. It takes a few ms to some tens of them. None
    where that shows nothing, as with large pages.
    """
    import torch

    if sys.platform != "linux":
        return None  # what gives memory back there is not known here
    found = []
    for _ in range(REPETITIONS):
        before, began = minor_faults(), time.perf_counter_ns()
        new = torch.empty(NEW_BYTES, dtype=torch.uint8).fill_(1)
        filled, faults = time.perf_counter_ns(), minor_faults() - before
        new.fill_(2)
        again = time.perf_counter_ns()
        del new
        freed = time.perf_counter_ns()
        if faults >= MIN_FAULTS:
            found.append((filled - began - (again - filled) + freed - again) / faults)
    return round(max(statistics.median(found), 0.0), 1) if found else None

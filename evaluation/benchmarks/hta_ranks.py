"""What Holistic Trace Analysis is asked about many ranks; runs in its own environment, with its package alone.

Usage: hta_ranks.py FOLDER; the last line of standard error has CPU seconds of all and of this process, and peaks in MB.
"""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]  # only in its own environment


def main(folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    files = {int(path.stem.removeprefix("rank")): str(path) for path in folder.glob("rank*.json")}
    analysis = TraceAnalysis(trace_files=dict(sorted(files.items())))
    ranks = sorted(files)
    print(len(analysis.get_temporal_breakdown(visualize=False)))
    print(len(analysis.get_comm_comp_overlap(visualize=False)))
    print(len(analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]))
    print(analysis.get_potential_stragglers())
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    mine, theirs = own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime
    print(f"\n{mine + theirs} {mine} {own.ru_maxrss / 1024} {others.ru_maxrss / 1024}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

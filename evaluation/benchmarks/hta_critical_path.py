"""What Holistic Trace Analysis' critical path of one step consists of; runs in its own environment.

Usage: hta_critical_path.py TRACE.json.gz STEP_INDEX; prints JSON, ms by category, or why there is none.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]  # only in its own environment

GPU = ("gpu_compute_bound", "gpu_kernel_kernel_overhead", "gpu_kernel_launch_overhead")


def main() -> None:
    """Analyse one step and print what bounds it."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    path, index = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    try:
        with tempfile.TemporaryDirectory() as folder:
            analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=folder)
            graph, done = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=index)
            edges = graph.get_critical_path_breakdown() if done else None
    except Exception as error:
        print(
            json.dumps({"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"})
        )
        return
    if edges is None:
        print(json.dumps({"failed": "it found no critical path"}))
        return
    sums = edges.groupby("bound_by")["duration"].sum().to_dict()
    print(json.dumps({name: us / 1e3 for name, us in sums.items()}))


if __name__ == "__main__":
    main()

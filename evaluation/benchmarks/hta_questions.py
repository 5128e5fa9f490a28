"""What Holistic Trace Analysis is asked in the benchmark; runs in its own environment, with its package alone."""

from __future__ import annotations

import logging
import sys

from hta.trace_analysis import TraceAnalysis


def main(path: str) -> None:
    logging.disable(logging.CRITICAL)
    analysis = TraceAnalysis(trace_files={0: path})
    print(analysis.get_temporal_breakdown(visualize=False).to_json())
    print(analysis.get_idle_time_breakdown(visualize=False)[0].to_json())
    print(analysis.get_queue_length_summary().to_json())


if __name__ == "__main__":
    main(sys.argv[1])

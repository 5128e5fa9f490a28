"""TraceLens: the performance report; the largest part of the GPU's timeline, and of computing the first category."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from yardstick.answer import Answer, NoAnswerError
from yardstick.case import Recording, Script
from yardstick.processes import ended, last_line
from yardstick.tools.families import COLLECTIVES, COPIES, HOST, KERNELS
from yardstick.tools.tool import Tool, timed_trace, trace_with_shapes

__all__ = ["TOOL"]

PARTS = {
    "computation_time": ("computation", KERNELS),
    "exposed_comm_time": ("exposed communication", COLLECTIVES),
    "exposed_memcpy_time": ("exposed copies", COPIES),
    "idle_time": ("idle", HOST),
}
CATEGORIES = {  # of operators: causes that only these can have
    "GEMM": ("full-precision-matmul", "misaligned-matmul", "slow-kernel", "at-roofline"),
    "CONV_fwd": ("full-precision-matmul", "layout-copy", "slow-kernel", "at-roofline"),
    "CONV_bwd": ("full-precision-matmul", "layout-copy", "slow-kernel", "at-roofline"),
    "elementwise": ("unfused-elementwise", "unfused", "layout-copy", "memset-traffic"),
}


def _ask(python: Path, subject: Script | Recording, folder: Path) -> str:
    report = folder / "report"
    command = python.with_name("TraceLens_generate_perf_report_pytorch")
    for trace in dict.fromkeys((trace_with_shapes(subject, folder), timed_trace(subject, folder))):
        run = ended((str(command), "--profile_json_path", str(trace), "--output_csvs_dir", str(report)), folder)
        if (report / "gpu_timeline.csv").is_file():
            break
    else:
        raise NoAnswerError(last_line(run))
    return json.dumps({name: _rows(report / f"{name}.csv") for name in ("gpu_timeline", "ops_summary_by_category")})


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def _read(raw: str) -> Answer:
    sheets = json.loads(raw)
    shares = {row["type"]: float(row["percent"]) for row in sheets["gpu_timeline"] if row["type"] in PARTS}
    largest = max(shares, key=lambda part: shares[part])
    said, names = PARTS[largest]
    cause = f"{said}: {shares[largest]:.0f}% of the timeline"
    categories = sheets["ops_summary_by_category"]
    if largest == "computation_time" and categories:
        first = categories[0]["op category"]
        cause += f", {first} first"
        names = CATEGORIES.get(first, names)
    return Answer(cause, names)


TOOL = Tool(
    name="tracelens",
    form="`TraceLens_generate_perf_report_pytorch`; the largest part of `gpu_timeline`, and the first category of "
    "`ops_summary_by_category` if that is computation (its agent needs a language model and was not run)",
    kinds=("recording",),
    answers=("cause",),
    ask=_ask,
    read=_read,
    requirements=("pandas==2.3.3", "tqdm", "openpyxl", "orjson", "tabulate", "PyYAML", "matplotlib", "StrEnum"),
    without_dependencies="TraceLens @ git+https://github.com/AMD-AGI/TraceLens@171dd74721ca1ec45709e5805b68ae1f65e27811",
)

"""`diagnose analyze --json` on the traces of many ranks: one process and several, the second look, and the parent.

The eight ranks of a recorded job are repeated in time to 4.5 MB each, and written as ranks 0 to N - 1. Every run is a
fresh process; runs take turns, and medians are shown. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
NAME = "param_dlrm_v100_r{}.json.gz"
NUM_REAL = 8
RANK_MB = 4.5
PROCESSES_BAR = 0.55  # of the time of one process, with two
CPU_BAR_S = 80 / 1024  # for each rank
PARENT_BAR_MB = 200
SECOND_BAR = 10  # times faster
HTA_BAR = 8  # times less CPU than Holistic Trace Analysis
HTA = "Holistic Trace Analysis"
MAX_HTA_RANKS = 128  # beyond, it takes hours and more memory than a small machine has
# Peak memory of the process itself, and CPU seconds of it and all that it started.
CHILD = """
import resource, sys
from diagnose.cli.main import run
code = run(sys.argv[1:])
own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
mine, theirs = own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime
print(f"\\n{mine + theirs} {mine} {own.ru_maxrss / 1024} {others.ru_maxrss / 1024}", file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    wall_s: float
    cpu_s: float  # of all processes
    parent_s: float  # of it, the CPU seconds of the process that started the others: while it computes, they wait
    parent_mb: float
    worker_mb: float  # the largest of the others


def write_ranks(folder: Path, num: int) -> int:
    """Write the traces of ``num`` ranks, where they are not there; return the bytes of all."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [_repeated(folder.parent, number) for number in range(min(NUM_REAL, num))]
    for rank in range(num):
        target = folder / f"rank{rank}.json"
        if not target.exists():
            info = f'"rank": {rank}, "world_size": {num}'
            target.write_text(re.sub(r'"rank": \d+,\s*"world_size": \d+', info, texts[rank % NUM_REAL], count=1))
    return sum(file.stat().st_size for file in folder.iterdir())


def _repeated(work: Path, number: int) -> str:
    target = work / f"real{number}.json"
    if not target.exists():
        repeat = [sys.executable, str(Path(__file__).with_name("repeat.py"))]
        subprocess.run([*repeat, TRACES / NAME.format(number), target, str(RANK_MB)], check=True, stdout=sys.stderr)
    return target.read_text()


def measured(folder: Path, *options: str, cache: Path) -> Cost:
    """Run the command once.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-c", CHILD, "analyze", str(folder), "--json", "-q", *options]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    start = os.times().elapsed
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wall = os.times().elapsed - start
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answered = len(json.loads(done.stdout)["ranks"])
    if answered != len(list(folder.iterdir())):
        raise RuntimeError(f"only {answered} ranks were compared")
    return Cost(wall, *map(float, done.stderr.split()[-4:]))


def measured_hta(folder: Path, python: Path) -> Cost:
    """Run the other tool once, with what it can answer of the same questions.

    Raises:
        RuntimeError: it failed.
    """
    start = os.times().elapsed
    command = [str(python), str(Path(__file__).with_name("hta_ranks.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return Cost(os.times().elapsed - start, *map(float, done.stderr.split()[-4:]))


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the medians, each on its own."""
    return Cost(*(median(getattr(cost, name) for cost in costs) for name in Cost.__slots__))


def compare(folder: Path, rounds: int, cache: Path, hta: Path | None) -> dict[str, Cost]:
    """Return what each way of reading the ranks takes; the other tool reads them once."""
    ways = {
        "1 process": ("--workers", "1", "--no-cache"),
        "2 processes": ("--workers", "2", "--no-cache"),
        "2 processes, first look": ("--workers", "2"),
        "2 processes, second look": ("--workers", "2"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        for name, options in ways.items():
            print(f"ranks: {folder.name}, round {number + 1} of {rounds}, {name}", file=sys.stderr, flush=True)
            costs[name].append(measured(folder, *options, cache=cache))
    found = {name: middle(each) for name, each in costs.items()}
    if hta is not None:
        print(f"ranks: {folder.name}, {HTA}", file=sys.stderr, flush=True)
        found[HTA] = measured_hta(folder, hta)
    return found


def table(num: int, num_bytes: int, costs: dict[str, Cost]) -> list[str]:
    """Return the rows of one size."""
    mb = num_bytes / num / 1e6
    return [
        f"| {num:,} × {mb:.1f} MB | {name} | {c.wall_s:.2f} s | {c.cpu_s:.2f} s | {c.parent_s:.2f} s "
        f"| {1e3 * c.cpu_s / num:.0f} ms "
        f"| {c.parent_mb:.0f} MB | {c.worker_mb:.0f} MB |"
        for name, c in costs.items()
    ]


def missed(num: int, costs: dict[str, Cost]) -> list[str]:
    """Return the bars that do not hold."""
    one, two, first, second = (cost for name, cost in costs.items() if name != HTA)
    held = {
        f"{num} ranks: two processes take {two.wall_s / one.wall_s:.2f} of one's time": two.wall_s
        <= PROCESSES_BAR * one.wall_s,
        f"{num} ranks: {two.cpu_s / num * 1e3:.0f} ms of CPU a rank": two.cpu_s <= CPU_BAR_S * num,
        f"{num} ranks: the parent holds {first.parent_mb:.0f} MB": first.parent_mb <= PARENT_BAR_MB,
        f"{num} ranks: the second look is {two.wall_s / second.wall_s:.1f} times faster": second.wall_s * SECOND_BAR
        <= two.wall_s,
    }
    if HTA in costs:
        less = costs[HTA].cpu_s / two.cpu_s
        held[f"{num} ranks: {less:.1f} times less CPU than {HTA}"] = less >= HTA_BAR
    return [bar for bar, holds in held.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmarks/ranks.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", default="64,1024", help="numbers of ranks, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    work = Path(tempfile.gettempdir(), "diagnose-ranks")
    parser.add_argument("--work", type=Path, default=work, help="a folder for the traces")
    parser.add_argument(
        "--hta", type=Path, default=ROOT / ".venv-bench" / "bin" / "python", help=f"a Python with {HTA}"
    )
    options = parser.parse_args()
    if not (TRACES / NAME.format(0)).exists():
        print(f"ranks: the traces {NAME.format('*')} are not in {TRACES}", file=sys.stderr)
        return 0
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores.\n")
    print("| ranks | read by | wall | CPU | of it the parent's | CPU a rank | parent's peak | largest worker's peak |")
    print("|---|---|---|---|---|---|---|---|")
    faults: list[str] = []
    for num in map(int, options.ranks.split(",")):
        folder = options.work / f"{num}ranks"
        size = write_ranks(folder, num)
        hta = options.hta if options.hta.exists() and num <= MAX_HTA_RANKS else None
        costs = compare(folder, options.rounds, options.work / "cache", hta)
        print("\n".join(table(num, size, costs)), flush=True)
        faults += missed(num, costs)
    print("\n" + ("Bars that are missed: " + "; ".join(faults) if faults else "All bars hold."))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

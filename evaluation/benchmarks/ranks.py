"""`diagnose analyze --json` on the traces of many ranks: one process and several, the second look, and the parent.

The eight ranks of a recorded job are repeated in time to 4.5 MB each, and written as ranks 0 to N - 1. Every run is a
fresh process; runs take turns, and medians are shown. Where other programs take the cores, the wall shows nothing: the
path is the CPU of the parent while it works alone and that of its busiest worker, which is the time on cores of their
own. Exit code 1 where a bar is missed. ``--timeline`` shows what each process did when.
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

from measure import installed_copy
from ranks_run import Note

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
WAYS = {
    "1 process": ("--workers", "1", "--no-cache"),
    "2 processes": ("--workers", "2", "--no-cache"),
    "2 processes, first look": ("--workers", "2"),
    "2 processes, second look": ("--workers", "2"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    wall_s: float
    cpu_s: float  # of all processes
    parent_s: float  # of it, of the process that started the others
    path_s: float  # of it, of that process while it works alone, and of the busiest other one: the time on free cores
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


def measured(python: Path, folder: Path, *options: str, cache: Path) -> tuple[Cost, list[Note]]:
    """Run the command once by this Python; return what it took, and what each process did when.

    Raises:
        RuntimeError: it failed.
    """
    log = cache.with_name("notes")
    program = str(Path(__file__).with_name("ranks_run.py"))
    command = [str(python), program, str(log), "analyze", str(folder), "--json", "-q", *options]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    start = os.times().elapsed
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wall = os.times().elapsed - start
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answered = len(json.loads(done.stdout)["ranks"])
    if answered != len(list(folder.iterdir())):
        raise RuntimeError(f"only {answered} ranks were compared")
    notes = [Note(*json.loads(line)) for line in log.read_text().splitlines()]
    cpu, parent, parent_mb, worker_mb = map(float, done.stderr.split()[-4:])
    path = parent - beside(notes) + max(busy(notes).values(), default=0.0)
    return Cost(wall, cpu, parent, path, parent_mb, worker_mb), notes


def beside(notes: Sequence[Note]) -> float:
    """Return the CPU seconds of the first process while others summarize ranks: but for what it imports before."""
    spent = {note.what: note.cpu_end - note.cpu_begin for note in notes if note.what in ("_profiled", "_context")}
    return spent["_profiled"] - spent["_context"] if "_context" in spent else 0.0


def busy(notes: Sequence[Note]) -> dict[int, float]:
    """Return the CPU seconds of each process but the first up to the end of its last piece of work."""
    first = next(note.process for note in notes if note.what == "command")
    others = [note for note in notes if note.process != first]
    return {process: max(n.cpu_end for n in others if n.process == process) for process in {n.process for n in others}}


def timeline(notes: Sequence[Note]) -> list[str]:
    """Return the rows of what each process did when; beside the span of its pieces, how much of that they fill."""
    first = next(note.process for note in notes if note.what == "command")
    of_parts = sorted(notes, key=lambda note: (note.begin, -note.end))
    rows = []
    for number, process in enumerate(dict.fromkeys(note.process for note in of_parts)):
        mine = [note for note in of_parts if note.process == process]
        who = "parent" if process == first else f"worker {number}"
        for what in dict.fromkeys(note.what for note in mine):
            parts = [note for note in mine if note.what == what]
            begin, end = parts[0].begin, parts[-1].end
            filled = sum(note.end - note.begin for note in parts) / max(end - begin, 1e-9)
            cpu = sum(note.cpu_end - note.cpu_begin for note in parts)
            rows.append(f"| {who} | {what} | {len(parts)} | {begin:.2f} s | {end:.2f} s | {filled:.0%} | {cpu:.2f} s |")
    return rows


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
    cpu, parent, parent_mb, worker_mb = map(float, done.stderr.split()[-4:])
    return Cost(os.times().elapsed - start, cpu, parent, cpu, parent_mb, worker_mb)


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the medians, each on its own."""
    return Cost(*(median(getattr(cost, name) for cost in costs) for name in Cost.__slots__))


def compare(python: Path, folder: Path, rounds: int, cache: Path, ways: Sequence[str]) -> dict[str, Cost]:
    """Return what each way of reading the ranks takes."""
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        for name in ways:
            print(f"ranks: {folder.name}, round {number + 1} of {rounds}, {name}", file=sys.stderr, flush=True)
            costs[name].append(measured(python, folder, *WAYS[name], cache=cache)[0])
    return {name: middle(each) for name, each in costs.items()}


def table(num: int, num_bytes: int, costs: dict[str, Cost]) -> list[str]:
    """Return the rows of one size."""
    size = f"{num:,} × {num_bytes / num / 1e6:.1f} MB"
    return [
        f"| {size} | {name} | {c.wall_s:.2f} s | {c.cpu_s:.2f} s | {c.parent_s:.2f} s | {c.path_s:.2f} s "
        f"| {1e3 * c.cpu_s / num:.0f} ms | {c.parent_mb:.0f} MB | {c.worker_mb:.0f} MB |"
        for name, c in costs.items()
    ]


def missed(num: int, costs: dict[str, Cost]) -> list[str]:
    """Return the bars that do not hold, of those that what was run shows."""
    one, two, first, second = (costs.get(name) for name in WAYS)
    held: dict[str, bool] = {}
    if two is not None:
        held[f"{num} ranks: {two.cpu_s / num * 1e3:.0f} ms of CPU a rank"] = two.cpu_s <= CPU_BAR_S * num
        held[f"{num} ranks: the parent holds {two.parent_mb:.0f} MB"] = two.parent_mb <= PARENT_BAR_MB
    if one is not None and two is not None:
        share = two.path_s / one.path_s
        held[f"{num} ranks: two processes take {share:.2f} of one's time"] = share <= PROCESSES_BAR
    if first is not None and second is not None:
        times = first.path_s / second.path_s
        held[f"{num} ranks: the second look takes {times:.1f} times less"] = times >= SECOND_BAR
    if HTA in costs and two is not None:
        less = costs[HTA].cpu_s / two.cpu_s
        held[f"{num} ranks: {less:.1f} times less CPU than {HTA}"] = less >= HTA_BAR
    return [bar for bar, holds in held.items() if not holds]


def show_timeline(python: Path, folder: Path, cache: Path) -> None:
    """Print what each process did when, read by two."""
    print(f"\n{folder.name}\n\n| process | what | pieces | begins | ends | of it filled | CPU |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(timeline(measured(python, folder, *WAYS["2 processes"], cache=cache)[1])), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="evaluation/benchmarks/ranks.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", default="64,1024", help="numbers of ranks, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way, in turns (default: 3)")
    work = Path(tempfile.gettempdir(), "diagnose-ranks")
    parser.add_argument("--work", type=Path, default=work, help="a folder for the traces")
    parser.add_argument(
        "--hta", type=Path, default=ROOT / ".venv-bench" / "bin" / "python", help=f"a Python with {HTA}"
    )
    parser.add_argument("--ways", default=",".join(map(str, range(1, len(WAYS) + 1))), help="of: " + "; ".join(WAYS))
    parser.add_argument("--timeline", action="store_true", help="show what each process did when, of two")
    options = parser.parse_args()
    ways = [list(WAYS)[int(number) - 1] for number in options.ways.split(",")]
    if not (TRACES / NAME.format(0)).exists():
        print(f"ranks: the traces {NAME.format('*')} are not in {TRACES}", file=sys.stderr)
        return 0
    python = installed_copy(options.work / "installed")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.\n")
    print(
        "| ranks | read by | wall | CPU | of it the parent's | path | CPU a rank | parent's peak "
        "| largest worker's peak |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    faults: list[str] = []
    for num in map(int, options.ranks.split(",")):
        folder = options.work / f"{num}ranks"
        size = write_ranks(folder, num)
        if options.timeline:
            show_timeline(python, folder, options.work / "cache")
            continue
        costs = compare(python, folder, options.rounds, options.work / "cache", ways)
        if options.hta.exists() and num <= MAX_HTA_RANKS:  # once: it takes as long as all of the others
            print(f"ranks: {folder.name}, {HTA}", file=sys.stderr, flush=True)
            costs[HTA] = measured_hta(folder, options.hta)
        print("\n".join(table(num, size, costs)), flush=True)
        faults += missed(num, costs)
    print("\n" + ("Bars that are missed: " + "; ".join(faults) if faults else "All bars hold."))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

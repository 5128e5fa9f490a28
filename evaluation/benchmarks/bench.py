"""`diagnose analyze --json` against Holistic Trace Analysis, in fresh processes that take turns.

Real traces are repeated in time to each size. Holistic Trace Analysis answers load, temporal breakdown, idle
breakdown and queue length; diagnose answers everything it knows, with one process and with two. Exit code 1 where a bar
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from measure import Cost, installed_copy, median, run

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
DEFAULT_TRACE = TRACES / "hta_dlrm_v100_test.json.gz"  # one of Holistic Trace Analysis' own test traces
FURTHER_TRACES = (
    TRACES / "hta_rn_ddp_v100_ns.json.gz",  # training whose steps are replayed
    TRACES.with_name("traces_second") / "tl_xdit_sd35_mi300.json.gz",  # a long inference on another vendor's device
)
REPORT = ROOT / "evaluation" / "pages" / "benchmarks.md"
ENVIRONMENT = ROOT / ".venv-bench"
HTA = "traceinsight==0.6.1"
WORK = ROOT / "build" / "bench"
TINY_TRACE = TRACES / "hta_simple_add_a100.json.gz"  # 24 kB
TINY_BAR_S = 0.2
HELP_BAR_S = 0.3
SHORT_ROUNDS = 11  # of what takes a fraction of a second
WHAT_IF_BAR_S = 0.2  # for 100,000 nodes
SAMPLER_BAR = 0.02  # of a step of 5 ms


@dataclass(frozen=True, slots=True)
class Bar:
    """What is promised at a size: times faster, and the share of the memory."""

    faster: float
    memory: float


PROCESSES = (1, 2)
# By processes and MB of raw JSON, of each trace; where no memory is promised, its share is 1.
BARS = {
    (1, 60): Bar(6, 1 / 5),
    (1, 290): Bar(10, 1 / 8),
    (1, 1000): Bar(20, 1 / 11),
    (2, 290): Bar(13, 1),
    (2, 1000): Bar(28, 1),
}
DEFAULT_BARS = {60: Bar(8, 1 / 5), 290: Bar(15, 1 / 8)}  # of the default trace, as a machine of two cores reads it


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of one trace at one size, read by so many processes."""

    trace: Path
    size_mb: int
    processes: int
    raw_mb: float
    ours: Cost
    theirs: Cost
    rounds: int

    @property
    def faster(self) -> float:
        """How many times less time passes."""
        return self.theirs.wall_s / self.ours.wall_s

    @property
    def memory(self) -> float:
        """The share of the memory."""
        return self.ours.peak_mb / self.theirs.peak_mb

    @property
    def bar(self) -> Bar | None:
        """What is promised; sizes of one's own have none."""
        by_default = name_of(self.trace) == name_of(DEFAULT_TRACE) and self.processes == max(PROCESSES)
        return (DEFAULT_BARS.get(self.size_mb) if by_default else None) or BARS.get((self.processes, self.size_mb))

    @property
    def holds(self) -> bool:
        """Whether the bar is met, where there is one."""
        return self.bar is None or (self.faster >= self.bar.faster and self.memory <= self.bar.memory)


@dataclass(frozen=True, slots=True)
class OwnCosts:
    """What diagnose costs by itself; measured by own_costs.py, but for ``help_s`` and ``tiny_s``."""

    help_s: float
    tiny_s: float
    nodes: int
    what_if_s: float
    sampler_slowdown: float
    sampler_share: float

    @property
    def missed(self) -> list[str]:
        """Return the names of the bars that do not hold."""
        held = {
            "--help": self.help_s <= HELP_BAR_S,
            "a tiny trace": self.tiny_s <= TINY_BAR_S,
            "what-if": self.what_if_s * 100_000 / self.nodes <= WHAT_IF_BAR_S,
            "sampler": self.sampler_slowdown <= SAMPLER_BAR,
        }
        return [name for name, holds in held.items() if not holds]

    def lines(self) -> list[str]:
        """Return what the page says of them."""
        return [
            f"`diagnose --help`: {self.help_s * 1000:.0f} ms (bar: {HELP_BAR_S * 1000:.0f} ms). A trace of 24 kB:",
            f"{self.tiny_s * 1000:.0f} ms (bar: {TINY_BAR_S * 1000:.0f} ms).",
            "",
            f"One change and its replay, on a graph of {self.nodes:,} nodes: {self.what_if_s * 1000:.0f} ms (bar:",
            f"{WHAT_IF_BAR_S * 1000:.0f} ms for 100,000).",
            "",
            "The sampler, in its worst case, a step of about 5 ms that computes in Python: the step takes",
            f"{self.sampler_slowdown:.1%} longer (bar: {SAMPLER_BAR:.0%}), and sampling takes",
            f"{self.sampler_share:.1%} of a core.",
        ]


def own_costs(python: Path, long: Path) -> OwnCosts:
    """Measure them in fresh processes."""
    help_s = median([run([python, "-m", "diagnose", "--help"]) for _ in range(SHORT_ROUNDS)]).wall_s
    tiny_s = median([run(analysis(python, TINY_TRACE, 1)) for _ in range(SHORT_ROUNDS)]).wall_s
    command = [sys.executable, str(Path(__file__).with_name("own_costs.py")), str(long)]
    measured = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return OwnCosts(help_s, tiny_s, **json.loads(measured))


def install() -> None:
    """Make the environment of Holistic Trace Analysis; it and its pandas never meet this project's own.

    Raises:
        SystemExit: no Python at hand has pip.
    """
    # Debian's python3 comes without ensurepip: whichever pip there is installs into the environment from outside.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(ENVIRONMENT)], check=True)
    (ENVIRONMENT / ".gitignore").write_text("*\n")
    for python in (sys.executable, sys._base_executable):
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
            subprocess.run([*pip, "--python", str(ENVIRONMENT), "install", "--quiet", HTA], check=True)
            return
    raise SystemExit("bench: no pip is at hand to install Holistic Trace Analysis with; install python3-pip.")


def long_trace(trace: Path, size_mb: int) -> Path:
    """Return where the trace repeated to a size lies."""
    return WORK / f"{name_of(trace)}.{size_mb}mb.json"


def name_of(trace: Path) -> str:
    return trace.name.removesuffix(".gz").removesuffix(".json")


def analysis(python: Path, trace: Path, processes: int) -> list[str | Path]:
    """Return the command that is measured."""
    return [python, "-m", "diagnose", "analyze", trace, "--json", "--no-cache", "--workers", str(processes)]


def compare(trace: Path, size_mb: int, rounds: int, python: Path, hta_python: Path) -> list[Result]:
    """Measure both on the trace repeated to ``size_mb``."""
    WORK.mkdir(parents=True, exist_ok=True)
    long = long_trace(trace, size_mb)
    if not long.exists():
        log(f"repeating {trace.name} to {size_mb} MB")
        # In a process apart: a child's peak memory counts from what its parent holds when it is started.
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("repeat.py")), trace, long, str(size_mb)], check=True
        )
    ours: dict[int, list[Cost]] = {processes: [] for processes in PROCESSES}
    theirs: list[Cost] = []
    for number in range(rounds):
        log(f"{name_of(trace)}, {size_mb} MB, round {number + 1} of {rounds}")
        for processes, costs in ours.items():
            costs.append(run(analysis(python, long, processes)))
        theirs.append(run([hta_python, Path(__file__).with_name("hta_questions.py"), long]))
    raw_mb = long.stat().st_size / 1e6
    return [
        Result(trace, size_mb, processes, raw_mb, median(costs), median(theirs), rounds)
        for processes, costs in ours.items()
    ]


def report(results: Sequence[Result], costs: OwnCosts) -> str:
    """Return pages/benchmarks.md."""
    python = f"Python {platform.python_version()}, numpy {version('numpy')}, msgspec {version('msgspec')}"
    lines = [
        "# Benchmarks",
        "",
        "`evaluation/bench` writes this page. It repeats real traces in time, then lets both tools answer in fresh",
        "processes that take turns; the numbers are medians. Holistic Trace Analysis does load, temporal breakdown,",
        "idle breakdown and queue length; `diagnose analyze --json` does all of its analysis, with `--workers 1` and",
        "with `--workers 2`, which is what a machine of two cores does by itself. Both tools are installed as pip",
        "installs them, and byte-compiled. The peak is that of the largest process.",
        "",
        f"{HTA.replace('==', ' ')}; {python}; {os.cpu_count()} cores.",
        "",
        "| trace | raw JSON | rounds | processes | diagnose: wall, CPU, peak "
        "| Holistic Trace Analysis: wall, CPU, peak | faster (wall) | faster (CPU) | memory | bar |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, results),
        "",
        f"The bars, with one process: {_bars({size: bar for (num, size), bar in BARS.items() if num == 1})}.",
        f"With two: {_bars({size: bar for (num, size), bar in BARS.items() if num == 2})}.",
        f"Of {name_of(DEFAULT_TRACE)} with two: {_bars(DEFAULT_BARS)}.",
        "",
        *costs.lines(),
        "",
    ]
    return "\n".join(lines)


def _row(result: Result) -> str:
    cells = (
        name_of(result.trace),
        f"{result.raw_mb:.0f} MB",
        str(result.rounds),
        str(result.processes),
        _cost(result.ours),
        _cost(result.theirs),
        f"{result.faster:.1f} ×",
        f"{result.theirs.cpu_s / result.ours.cpu_s:.1f} ×",
        f"1/{1 / result.memory:.1f}",
        ("met" if result.holds else "missed") if result.bar else "none",
    )
    return "| " + " | ".join(cells) + " |"


def _cost(cost: Cost) -> str:
    return f"{cost.wall_s:.2f} s, {cost.cpu_s:.2f} s, {cost.peak_mb:.0f} MB"


def _bars(bars: Mapping[int, Bar]) -> str:
    return "; ".join(
        f"at {size} MB at least {bar.faster:.0f} × faster"
        + (f" with at most 1/{1 / bar.memory:.0f} of the memory" if bar.memory < 1 else "")
        for size, bar in bars.items()
    )


def many_ranks(numbers: str) -> tuple[str, bool]:
    """Return the section about jobs of many ranks, and whether their bars hold."""
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), "--ranks", numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return f"\n## Many ranks\n\nWhat is measured: [scale.md](scale.md).\n\n{done.stdout}", done.returncode == 0


def log(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="evaluation/bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--install", action="store_true", help=f"make .venv-bench with {HTA} first")
    parser.add_argument("--hta", type=Path, default=ENVIRONMENT / "bin" / "python", help="a Python that has it")
    parser.add_argument(
        "--trace", type=Path, action="append", help="a recorded trace to repeat, instead of the three; may be repeated"
    )
    parser.add_argument("--sizes", default="60,290", help="MB of raw JSON, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tool at each size")
    parser.add_argument("--ranks", default="", help="also jobs of so many ranks, separated by commas: 64,1024")
    parser.add_argument("--no-write", action="store_true", help="print the page instead of writing pages/benchmarks.md")
    return parser.parse_args()


def main() -> int:
    options = parse()
    traces = options.trace or [trace for trace in (DEFAULT_TRACE, *FURTHER_TRACES) if trace.exists()]
    missing = [str(trace) for trace in traces if not trace.exists()]
    if missing or not traces:
        log(f"not here: {', '.join(missing) or DEFAULT_TRACE}; name another trace with --trace.")
        return 2 if missing else 0
    if options.install:
        install()
    if not options.hta.exists():
        log("Holistic Trace Analysis is not installed; run evaluation/bench --install, or name its Python with --hta.")
        return 2
    sizes = [int(size) for size in options.sizes.split(",")]
    python = installed_copy(WORK / "installed")
    results = [
        row for trace in traces for size in sizes for row in compare(trace, size, options.rounds, python, options.hta)
    ]
    costs = own_costs(python, long_trace(traces[0], max(sizes)))
    page = report(results, costs)
    ranks, held = many_ranks(options.ranks) if options.ranks else ("", True)
    page += ranks
    print(page)
    if not options.no_write:
        REPORT.write_text(page)
    missed = [
        f"{name_of(result.trace)} at {result.size_mb} MB by {result.processes}"
        for result in results
        if not result.holds
    ] + costs.missed
    missed += [] if held else ["many ranks"]
    if missed:
        log("a bar is missed: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Replays the steps of the real traces in ../shared/traces and compares them with what was measured.

Prints a table and exits 1 where the replay with measured delays misses the bar, 0 otherwise, and 0 with a clear line
where the traces are absent.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
MEDIAN_BAR = 0.005
WORST_BAR = 0.03
USUAL_BAR = 0.003  # the median error of usual delays; the worst is held to WORST_BAR
HELD_OUT_BAR = 0.05

ABOUT = """# How well a replay reproduces the step

Made by `evaluation/replay --write FILE` from the published traces with a device; those without step marks count as one
step.

The steady steps become a dependency graph. A replay computes when every node ends from what it waits for:

| edge | from, to | delay |
|---|---|---|
| thread, handoff | host work on one thread; backward after forward | none |
| launch | call, its task | launch latency; negative where clocks are skewed, since no task precedes its launch |
| stream | a task, the next one of its stream | the pause between them |
| event | a task, a task of another stream that waits for its event, where the file records events | latency |
| inferred event | the same where it does not: a late task begins within 25 µs of the end of the other | latency |
| room | a kernel that fills the device, a late task of another stream that begins in its last wave | negative |
| call, wait | what a blocking call costs by itself; the tasks that it waits for | until it returns; may be negative |
| free | all tasks queued before, a call that frees memory: its own work follows its wait | none |

Late is a task that starts 10 µs and more after its stream and its launch allow. Blocks are given out in the order of
the kernels, so a task of another stream gets room when the last blocks of a kernel with at least as many blocks as the
device has SMs have been given out: in its second half. Nodes of one CUDA graph may overlap on a stream; each follows
the last one to end before it.

Clocks are skewed where calls return before what they must have waited for has ended: a synchronisation of the device, a
copy to pageable memory. By how much is measured in each trace, and no more than tasks begin after their launches.

A window begins, where the device was behind the host from the start, when the device was done with what had been queued
before. Those tasks have no launch in the recording, and are taken as queued before it.

Three questions, from the weakest to the strongest:

- **Measured delays.** Each task keeps its own measured delay on the edge that it waited for. Unchanged, such a graph
  gives back what was measured *by construction*; an error here would be a fault of the graph or of the replay, and a
  zero proves nothing about predictions. That they follow changes is what tests/replay checks.
- **Usual delays.** Every delay is replaced by the usual one of the *others* of its kind in the trace: the mean of the
  middle 80 %, of the same API for launches and waits. What the graph does not explain shows as an error. Beside it
  the *excess latency*: how much longer than usual the delays on the measured critical path were, all together, as a
  share of the window. Errors of both signs cancel in a window; in the excess nothing does.
- **Held-out step** (three steady steps or more). The delays of the last step are those of the steps before it;
  the work of host and device in it is its own. Its length, to the end of its last device task, against the measured
  one. Beside it, what no graph at all would give: the mean of the other steps' host times for the last one's. Host
  times scatter that much in these files, so this shows how even the steps are, not how good the replay is.

Not modelled: other ranks (a collective takes as long as it took),
kernels slowing each other down, DataLoader workers (loading is host work of the training thread).
Host work keeps its measured length, so no question here tests how well that of a changed script is predicted.

Refused with that reason, and not counted, are traces without launch records for most tasks, and those in which nodes of
graphs were not recorded for more than 3 % of the time.

## What the numbers mean

`predict(tables, before, effect)` gives the step after one more change, as a range; `replay_base(tables)` holds the
steps that are replayed and the error of the usual delays on them. A dropped wait can save more than its finding lost:
without it the host runs ahead and covers other gaps too. That a value which `.item()` reads is needed by the host at
that place is not in a trace: whether a sync can be dropped is for the reader to decide.

## Results
"""


@dataclass(frozen=True)
class Row:
    """One trace; errors are shares, with sign."""

    name: str
    num_nodes: int
    replay_ms: float
    window: float
    step: float
    usual: float
    excess: float  # share of the window by which delays on the measured critical path are longer than usual
    held_out: float | None
    mean_of_others: float | None
    unlinked: float
    refused: str  # why nothing is replayed, whatever the error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write the table as Markdown")
    parser.add_argument("--traces", type=Path, default=TRACES)
    options = parser.parse_args()
    if not (options.traces / "labels.csv").is_file():
        print(f"skipped: no traces in {options.traces}")
        return 0
    rows = replays(options.traces)
    lines = [*table(rows), "", *summary(rows)]
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join([ABOUT, *lines[len(table(rows)) + 1 :], "", *table(rows)]) + "\n")
    return 0 if bars_hold(rows) else 1


def replays(folder: Path) -> list[Row]:
    """Replay every trace of a folder that has a device."""
    return [row for row in map(replayed, sorted(folder.glob("*.json.gz"))) if row is not None]


def bars_hold(rows: list[Row]) -> bool:
    """Return whether the replay with measured and with usual delays reproduces the steps, and a step held out."""
    worst = max(max(abs(r.window), abs(r.step)) for r in rows)
    held_out = median(abs(r.held_out) for r in rows if r.held_out is not None)
    usual = [abs(r.usual) for r in rows if not r.refused] or [0.0]
    measured_hold = worst <= WORST_BAR and median(abs(r.step) for r in rows) <= MEDIAN_BAR
    return measured_hold and median(usual) <= USUAL_BAR and max(usual) <= WORST_BAR and held_out <= HELD_OUT_BAR


def replayed(path: Path) -> Row | None:
    import numpy as np

    from diagnose.errors import DiagnoseError
    from diagnose.pipeline.find import build_tables
    from diagnose.replay import build, critical_path, simulate, typical_delays
    from diagnose.replay.build import unreplayable
    from diagnose.trace_reader import open_captures

    try:
        capture = open_captures([path])[0]
    except DiagnoseError:
        return None
    t = build_tables(capture, capture.trace)
    if t.device_id < 0:
        return None
    graph = build(t)
    began = time.perf_counter()
    times = simulate(graph)
    took_ms = 1e3 * (time.perf_counter() - began)
    length = t.steps.window_end - t.steps.window_start
    typical = typical_delays(graph)
    usual = simulate(typical)
    followed = np.zeros(len(graph), bool)
    followed[critical_path(graph, times).node] = True
    waited = graph.binding & followed[graph.dst]
    excess = float(np.maximum(graph.delay - typical.delay, 0.0)[waited].sum()) / length

    def steps(ends: np.ndarray) -> np.ndarray:
        return np.diff(np.concatenate([[ends[0]], ends[graph.marks]]))

    measured, again = steps(graph.end), steps(times.end)
    off = np.abs(again - measured) / np.maximum(measured, 1)
    held_out = mean_of_others = None
    if len(measured) >= 3:
        before = int(graph.end[graph.marks[-2]])
        guessed = simulate(typical_delays(graph, held_out_from=before)).end.max() - before
        held_out = float(guessed / (t.steps.window_end - before) - 1)
        mean_of_others = float(measured[:-1].mean() / measured[-1] - 1)
    return Row(
        name=path.name.removesuffix(".json.gz"),
        num_nodes=len(graph),
        replay_ms=took_ms,
        window=times.window_ns / length - 1,
        step=float(off.max()) if len(off) else 0.0,
        usual=usual.window_ns / length - 1,
        excess=excess,
        held_out=held_out,
        mean_of_others=mean_of_others,
        unlinked=float((t.tasks.launch < 0).mean()),
        refused=unreplayable(t),
    )


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| trace | nodes | replay ms | measured delays, window | worst step | usual delays, window | excess latency "
        "| held-out step | mean of the others | tasks without launch |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        held_out, mean = ("n/a" if share is None else f"{share:+.2%}" for share in (r.held_out, r.mean_of_others))
        lines.append(
            f"| {r.name} | {r.num_nodes} | {r.replay_ms:.0f} | {r.window:+.3%} | {r.step:.3%} | {r.usual:+.2%} "
            f"| {r.excess:.2%} | {held_out} | {mean} | {r.unlinked:.0%} |"
        )
    return lines


def summary(rows: list[Row]) -> list[str]:
    usual = [abs(r.usual) for r in rows if not r.refused] or [0.0]
    excess = [r.excess for r in rows if not r.refused] or [0.0]
    held_out = [abs(r.held_out) for r in rows if r.held_out is not None and not r.refused]
    steps = [r.step for r in rows]
    return [
        f"{len(rows)} traces.",
        f"Measured delays: median {median(steps):.2%}, worst {max(steps):.2%} "
        f"(bars {MEDIAN_BAR:.1%} and {WORST_BAR:.0%}; zero by construction).",
        f"Usual delays: median {median(usual):.2%}, worst {max(usual):.2%} "
        f"(bars {USUAL_BAR:.1%} and {WORST_BAR:.0%}); {sum(u <= WORST_BAR for u in usual)} of {len(usual)} within "
        f"{WORST_BAR:.0%}.",
        f"Excess latency on the critical path: median {median(excess):.2%}, worst {max(excess):.2%}.",
        *(f"Refused, not among the usual delays ({r.usual:+.2%}): {r.name}. {r.refused}" for r in rows if r.refused),
        f"Held-out step: median {median(held_out):.2%}, worst {max(held_out):.2%} over {len(held_out)} traces "
        f"(bar: median {HELD_OUT_BAR:.0%}).",
    ]


if __name__ == "__main__":
    sys.exit(main())

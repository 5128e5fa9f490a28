"""Compares verdict, dominant cause and replayed steps with two folders of real traces and their labels.

Prints a table for each folder and a score with thresholds fitted on other groups of traces; exits 1 below a bar, 0 at
or above all of them, and 0 with a clear line where the traces are absent. The labels are read here only; the product
never sees them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leave_one_out import Graded, LeftOut, leave_one_out
from replay_accuracy import Row as Replay
from replay_accuracy import bars_hold, replays, summary
from yardstick.readers import ROOT, accepted, labels_of

FOLDERS = tuple(ROOT.parent / "shared" / name for name in ("traces", "traces_second"))
REPLAY = "## Replayed steps\n\nWhat the lines mean, and each trace of the first folder: [replay](replay.md).\n"
# Rows whose label another reading of the raw events contests, with the numbers; printed where they come out wrong.
WHY_WRONG = {
    "hta_dlrm_v100_test": "the label is contestable. It was read off sums of kernels: pointwise ones and copies 24%, "
    "products in float32 21% of the time of all tasks, and of these two the first alone is accepted. By the raw events "
    "pointwise kernels take 14.8 ms of a step of 124 ms, and runs of them that one pass would do 1.9 ms; "
    "16.0 ms (819 a step) are copies that stand back to back with the launches of two CUDA graphs, of parameters, of "
    "what backward keeps, and of outputs: the model was compiled by a backend that copies each input. The replay "
    "without the copies saves 14.4 ms, without half of the time of 33.2 ms of float32 products 15.4 ms: within 10% "
    "of each other, and the report names both, the products first.",
    "tlut_sdpa_long_mi300": "by the raw events ten runs of one attention kernel are the recording, at 20% of the "
    "device's peak. No edit is known that makes it faster: other libraries are listed to try, and a kernel that is "
    "only slow is no answer: where it was one, three of four healthy runs on an H200 were answered with it.",
}
VERDICT_BAR = 0.95
# Verdict and cause: of rows whose label is sure, of all graded rows, and with thresholds fitted on other groups: the
# rows above are lost, and no more may be.
CAUSE_BAR = 0.96
GRADED_BAR = 0.94
LEFT_OUT_BAR = 0.97


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write the table as Markdown")
    parser.add_argument("--traces", type=Path, action="append", help="a folder with traces and labels.csv")
    parser.add_argument(
        "--simulated", type=int, metavar="N", help="score N simulated cases instead (pages/simulation.md)"
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="score N jobs of 2 to 256 ranks (pages/ranks.md)")
    parser.add_argument("--reason", help="plant this in all of these jobs, such as nothing")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes for the simulated cases")
    parser.add_argument("--table", type=Path, help="write the tables of the simulated cases into this page")
    parser.add_argument("--floors", action="store_true", help="fail where simulated answers are worse than before")
    parser.add_argument("--verbose", action="store_true", help="a line for each simulated case too")
    options = parser.parse_args()
    if options.ranks:
        from simulation.job_plans import draw_plan
        from simulation.job_scoring import run_jobs

        plans = [draw_plan(options.seed, number, options.reason) for number in range(options.ranks)]
        return run_jobs(plans, options.seed, jobs=options.jobs, table=options.table, verbose=options.verbose)
    if options.simulated:
        from simulation.command import run_simulated

        return run_simulated(
            options.simulated,
            options.seed,
            jobs=options.jobs,
            table=options.table,
            verbose=options.verbose,
            floors=options.floors,
        )
    folders = [folder for folder in options.traces or FOLDERS if (folder / "labels.csv").is_file()]
    if not folders:
        print("skipped: no labelled traces")
        return 0
    scores = [scored(folder) for folder in folders]
    left_out = leave_one_out([row["trace"] for score in scores for row in score.rows if row["graded"] and row["trace"]])
    print(*left_out_lines(left_out), sep="\n")
    if options.write:
        replay = ["", REPLAY]
        for score in scores:
            replay += [f"### {score.name}", "", *summary(score.replayed), ""]
        options.write.write_text(markdown(scores, left_out) + "\n".join(replay))
    share_right = 1 - len(left_out.wrong) / max(left_out.num, 1)
    return 0 if all(score.holds for score in scores) and share_right >= LEFT_OUT_BAR else 1


@dataclass(frozen=True)
class Score:
    """One folder of labelled traces."""

    name: str
    rows: list[dict[str, Any]]
    replayed: list[Replay]

    @property
    def high(self) -> list[dict[str, Any]]:
        """Return the graded rows whose label is sure."""
        return [r for r in self.rows if r["graded"] and r["confidence"] == "high"]

    @property
    def verdicts(self) -> float:
        """Return the share of those with the right verdict."""
        return sum(r["verdict_right"] for r in self.high) / max(len(self.high), 1)

    @property
    def causes(self) -> float:
        """Return the share of those with the right verdict and cause."""
        return sum(map(is_right, self.high)) / max(len(self.high), 1)

    @property
    def graded(self) -> list[dict[str, Any]]:
        """Return all rows with a label."""
        return [r for r in self.rows if r["graded"]]

    @property
    def holds(self) -> bool:
        """Return whether every bar is met, nothing crashed and no invariant is broken."""
        right = sum(map(is_right, self.graded)) / max(len(self.graded), 1)
        faults = [r for r in self.rows if r["crashed"] or r["broken"]]
        met = self.verdicts >= VERDICT_BAR and self.causes >= CAUSE_BAR and right >= GRADED_BAR
        return met and not faults and bars_hold(self.replayed)


def is_right(row: dict[str, Any]) -> bool:
    return bool(row["verdict_right"] and row["cause_right"])


def scored(folder: Path) -> Score:
    """Diagnose the labelled traces of a folder and print what came of each."""
    print(f"== {folder.name}")
    rows = [row_of(folder, label) for label in labels_of(folder)]
    score = Score(folder.name, rows, replays(folder))
    for row in rows:
        print(row_text(row))
    print(f"high confidence: {len(score.high)} rows")
    print(
        f"  verdict {score.verdicts:.1%} (bar {VERDICT_BAR:.0%}), "
        f"verdict and cause {score.causes:.1%} (bar {CAUSE_BAR:.0%})"
    )
    both = sum(map(is_right, score.graded))
    print(f"all graded rows: verdict and cause {both} of {len(score.graded)} (bar {GRADED_BAR:.0%})")
    crashed, broken = ([r["name"] for r in rows if r[key]] for key in ("crashed", "broken"))
    print(f"crashed: {crashed or 'none'}; invariants broken: {broken or 'none'}")
    print("replayed steps:", *(f"  {line}" for line in summary(score.replayed)), sep="\n")
    return score


def left_out_lines(left_out: LeftOut) -> list[str]:
    """Return the score with thresholds that were fitted without each group, as lines of text."""
    right = left_out.num - len(left_out.wrong)
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in left_out.chosen.items())
    return [
        f"Thresholds fitted without each of {left_out.num_groups} groups: verdict and cause {right} of {left_out.num} "
        f"({right / max(left_out.num, 1):.1%}, bar {LEFT_OUT_BAR:.0%}).",
        f"Wrong then: {', '.join(left_out.wrong) or 'none'}.",
        f"Chosen: {ranges}.",
    ]


def row_of(folder: Path, label: dict[str, str]) -> dict[str, Any]:
    from diagnose.errors import DiagnoseError
    from diagnose.pipeline.run import analyze_paths

    row: dict[str, Any] = {
        "name": label["name"],
        "confidence": label["confidence"],
        "graded": label["verdict"] != "none",
        "expected": f"{label['verdict_accept'] or label['verdict']} / {label['cause_accept']}",
        "verdict_right": False,
        "cause_right": False,
        "crashed": False,
        "broken": "",
        "got": "",
        "trace": None,
    }
    try:
        d = analyze_paths([folder / f"{label['name']}.json.gz"])
    except DiagnoseError as error:
        row["got"] = str(error).replace(f"{folder}/", "")
        row["crashed"] = row["graded"]
        return row
    except Exception as error:  # a traceback is what this table must show, not die of
        row["got"] = f"{type(error).__name__}: {error}"
        row["crashed"] = True
        return row
    verdicts, causes = accepted(label)
    row["got"] = f"{d.verdict} / {d.dominant}"
    row["verdict_right"] = d.verdict in verdicts
    row["cause_right"] = (d.dominant or "") in causes
    row["trace"] = Graded(label["name"], label["group"] or label["name"], d, verdicts, causes)
    row["shares"] = ", ".join(f"{f.rule} {f.lost_ns / d.step_ns:.1%}" for f in d.findings[:3])
    if d.partition:
        parts = (d.partition.compute, d.partition.exposed_communication, d.partition.exposed_copy, d.partition.idle)
        if abs(sum(parts) - 1) > 1e-9 or abs(sum(d.idle_by_cause.values()) - d.partition.idle) > 1e-9:
            row["broken"] = f"partition {sum(parts)}, causes {sum(d.idle_by_cause.values())}"
    failed = [note.text for note in d.trust if "failed on this trace" in note.text]
    row["broken"] = row["broken"] or " ".join(failed)
    return row


def mark(row: dict[str, Any]) -> str:
    if not row["graded"]:
        return "!" if row["crashed"] else "-"
    return ("v" if row["verdict_right"] else "V") + ("c" if row["cause_right"] else "C")


def row_text(row: dict[str, Any]) -> str:
    head = f"{mark(row):3}{row['confidence']:5}{row['name']:30} {row['got']!s:44} want {row['expected']}"
    return f"{head}  [{row.get('shares', '')}] {row['broken']}"


def markdown(scores: list[Score], left_out: LeftOut) -> str:
    """Return pages/accuracy.md."""
    lines = [
        "# Accuracy on real traces",
        "",
        "Made by `evaluation/accuracy --write FILE` from two folders of published Kineto traces (V100 to B200,",
        "MI210 to MI300X, 2020 to 2026) that a careful reader labelled. Only that script reads the labels; no rule",
        "sees them. The rules were written with both folders in view, so these figures are no estimate for a",
        "trace that nobody here has seen; [simulated runs](simulation.md) are programs drawn anew.",
        "An answer is right when it is among those that the label accepts. Rows without a GPU verdict (hand-trimmed",
        "files, no device events) are not graded: for them the table shows what is answered instead of a traceback.",
        "",
        *left_out_lines(left_out),
        "What single rules claim is not fitted anew there.",
        "",
    ]
    for score in scores:
        both = sum(map(is_right, score.graded))
        lines += [
            f"## {score.name}",
            "",
            f"High confidence ({len(score.high)} rows): verdict {score.verdicts:.1%}, verdict and dominant cause "
            f"{score.causes:.1%}.",
            f"All graded rows: verdict and dominant cause {both} of {len(score.graded)}. Still wrong, and why:",
            "",
            *(wrong_lines(score) or ["- none"]),
            "",
            "| trace | confidence | expected verdict / cause | diagnosis | right |",
            "|---|---|---|---|---|",
        ]
        for r in score.rows:
            expected = str(r["expected"]).replace("|", " or ") if r["graded"] else "no GPU verdict"
            lines.append(f"| {r['name']} | {r['confidence']} | {expected} | {r['got']} | {judged(r)} |")
        lines.append("")
    return "\n".join(lines)


def wrong_lines(score: Score) -> list[str]:
    """Return a line for each graded row that is still wrong: what was answered instead, what it found, and why."""
    return [
        f"- {r['name']}: {r['got']} ({r.get('shares', '')}); "
        + WHY_WRONG.get(r["name"], "the label stands: the reason is not known yet.")
        for r in score.graded
        if not is_right(r)
    ]


def judged(row: dict[str, Any]) -> str:
    """State in a word what is right."""
    if not row["graded"]:
        return "crashed" if row["crashed"] else "n/a"
    if not row["verdict_right"]:
        return "no"
    return "both" if row["cause_right"] else "verdict"


if __name__ == "__main__":
    sys.exit(main())

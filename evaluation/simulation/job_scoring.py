"""Jobs with a planted reason, answered by the product from their files, and scored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.job_files import write_job
from simulation.job_plans import CALM, REASONS, Plan
from simulation.jobs import FIRST_STEP, JobRun, run_job

if TYPE_CHECKING:
    from diagnose.model.job import Job

__all__ = ["JobScore", "run_jobs", "score_job", "table_of"]

BARS = {"late": 0.98, "reason": 0.95, "within": 0.95}
MIN_COST = 0.01  # of the step: what costs less, because communication hides it, makes nobody late
MAX_OFF = 0.05  # of the planted milliseconds
OF_HOST = ("backward-pause", "slow-host", "contention")
MARKS = ("<!-- jobs -->", "<!-- /jobs -->")
_CAUSES = {
    "loader-2": ("data-stall",),
    "loader-5": ("data-stall",),
    "compute": ("slower-device",),
    "slow-link": ("slow-link",),
    "wandering": ("gc-pause", "python-stall"),
    "late-start": ("late-start",),
    "backward-pause": ("gc-pause", "python-stall"),
    "slow-host": ("slower-host",),
    "contention": ("slower-host", "off-cpu", "launch-bound", "host-compute"),
    **dict.fromkeys(CALM, ("",)),
}


@dataclass(frozen=True)
class JobScore:
    """What came of one job."""

    plan: Plan
    who: str
    cause: str
    more_ns: float
    planted_ns: float
    step_ns: float
    costs_ns: float
    seconds: float

    @property
    def late_right(self) -> bool:
        """Return whether the right ranks were named, or nobody where nobody is late."""
        waits_for_any = (
            self.plan.reason == "host-bound" and self.who == "turns"
        )  # hosts vary, and devices wait for them
        return self.who == expected(self.plan) or waits_for_any or (self.is_hidden and not self.who)

    @property
    def is_hidden(self) -> bool:
        """Return whether what was planted makes no step longer."""
        return self.plan.reason not in (*CALM, "late-start") and self.costs_ns < MIN_COST * self.step_ns

    @property
    def reason_right(self) -> bool:
        """Return whether the reason is the planted one."""
        wanted = _CAUSES[self.plan.reason]
        return self.late_right and (self.cause in wanted or not self.who)

    @property
    def off(self) -> float:
        """Return by which share the milliseconds are wrong."""
        return abs(self.more_ns / self.planted_ns - 1) if self.planted_ns and self.who else 0.0


def expected(plan: Plan) -> str:
    """Return who has to be named."""
    if plan.reason == "slow-link":
        return f"group {plan.members}"
    if plan.reason == "late-start":
        return f"begins {plan.rank}"
    return {"wandering": "turns", **dict.fromkeys(CALM, "")}.get(plan.reason, f"late ({plan.rank},)")


def score_job(plan: Plan) -> JobScore:
    """Run one job, let the product read its files, and compare."""
    from diagnose.analyzers import TRAITS
    from diagnose.pipeline.rank import profile_rank
    from diagnose.ranks.comparison import compare_ranks, job_of
    from diagnose.ranks.profile import JobProfile
    from diagnose.trace_reader import open_captures

    run = run_job(plan)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_job(run, Path(folder))
        began = time.perf_counter()
        profiles = [profile_rank(capture) for path in paths for capture in open_captures([path])]
        job = job_of(compare_ranks(JobProfile.of(profiles), TRAITS))
        seconds = time.perf_counter() - began
    who, cause, more = "", "", 0.0
    if job.late_ranks:
        who, cause, more = f"late {job.late_ranks}", job.cause, job.cause_ns
    elif job.slow_group is not None:
        who, cause, more = f"group {job.slow_group.members}", "slow-link", job.slow_group.more_ns
    elif job.taking_turns and plan.reason != "late-start":
        who, cause, more = "turns", job.cause, job.cause_ns
    elif job.begins_late is not None:
        who, cause, more = f"begins {job.begins_late}", "late-start", job.begins_late_ns
    return JobScore(plan, who, cause, more, _planted(run, job), run.step_ns, run.costs_ns, seconds)


def _planted(run: JobRun, job: Job) -> float:
    """Return what was planted a step, of the steps that the product could compare: on a host it varies by step.

    Where a host runs ahead, the device does the work of the first steps of the window partly before the window begins.
    """
    rows = {row.rank: row for row in job.rows}
    if not run.by_step_ns or run.plan.rank not in rows:
        return run.planted_ns
    late = rows[run.plan.rank].by_step_ns
    compared = [run.by_step_ns[n - FIRST_STEP] for n, ns in zip(job.steps, late, strict=True) if ns is not None]
    return sum(compared) / len(compared) if compared else run.planted_ns


def run_jobs(
    plans: Sequence[Plan], seed: int, *, jobs: int = 1, table: Path | None = None, verbose: bool = False
) -> int:
    """Score the jobs, print the table, and write it between the marks of a page; return 1 where a bar is missed."""
    scores = []
    for score in _scored(plans, jobs):
        scores.append(score)
        if verbose or not (score.late_right and score.reason_right and score.off <= MAX_OFF):
            print(_line(score), flush=True)
    lines = table_of(scores, seed)
    print("\n".join(lines))
    if table is not None:
        text = table.read_text()
        before, _, rest = text.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        table.write_text("\n".join([before + MARKS[0], "", *lines, "", MARKS[1] + after]))
    return 0 if _holds(scores) else 1


def _scored(plans: Sequence[Plan], jobs: int) -> Iterator[JobScore]:
    if jobs == 1:
        yield from map(score_job, plans)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(score_job, plans)


def _holds(scores: Sequence[JobScore]) -> bool:
    planted = [s for s in scores if s.plan.reason not in CALM]
    calm = [s for s in scores if s.plan.reason in CALM]
    return (
        _share([s.late_right for s in planted]) >= BARS["late"]
        and _share([s.reason_right for s in planted]) >= BARS["reason"]
        and _share([s.off <= MAX_OFF for s in planted if s.late_right]) >= BARS["within"]
        and all(s.late_right for s in calm)
    )


def table_of(scores: Sequence[JobScore], seed: int) -> list[str]:
    """Return the table of what was planted and what was answered, in Markdown."""
    lines = [
        f"{len(scores)} jobs of {min(s.plan.num_ranks for s in scores)} to {max(s.plan.num_ranks for s in scores)} "
        f"ranks, seed {seed}.",
        "",
        "| planted | jobs | who | why | within 5 % | median error | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for reason in REASONS:
        mine = [s for s in scores if s.plan.reason == reason]
        if mine:
            lines.append(f"| {reason} | {_columns(mine)} |")
    planted = [s for s in scores if s.plan.reason not in CALM]
    if planted:
        lines.append(f"| all of these but nothing | {_columns(planted)} |")
    for name, is_of in (("of them within the backward or on the host", True), ("of them the others", False)):
        mine = [s for s in planted if (s.plan.reason in OF_HOST) == is_of]
        if 0 < len(mine) < len(planted):
            lines.append(f"| {name} | {_columns(mine)} |")
    return lines


def _columns(scores: Sequence[JobScore]) -> str:
    who, why = _share([s.late_right for s in scores]), _share([s.reason_right for s in scores])
    if scores[0].plan.reason in CALM:
        return f"{len(scores)} | {who:.1%} | | | | "
    off = sorted(s.off for s in scores if s.late_right)
    within = _share([o <= MAX_OFF for o in off])
    middle, most = (off[len(off) // 2], off[-1]) if off else (0.0, 0.0)
    return f"{len(scores)} | {who:.1%} | {why:.1%} | {within:.1%} | {middle:.1%} | {most:.1%}"


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 1.0


def _line(s: JobScore) -> str:
    p = s.plan
    return (
        f"{p.name} {p.reason} ranks={p.num_ranks} split={p.split} steps={p.num_steps} step={s.step_ns / 1e6:.1f} ms: "
        f"{s.who or 'nobody'} ({s.cause}) {s.more_ns / 1e6:.2f} ms, planted {expected(p) or 'nobody'} "
        f"{s.planted_ns / 1e6:.2f} ms, which costs {s.costs_ns / 1e6:.2f}; {s.seconds:.1f} s"
    )

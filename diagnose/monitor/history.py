"""The runs of one name beside each other: whether they became slower, since when, and what was different then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from statistics import median, stdev

from diagnose.monitor.run_folder import MonitoredRun
from diagnose.monitor.step_rows import percentile
from diagnose.monitor.trends import observe
from diagnose.text.numbers import duration, growth, percent

COMPARED = ("commit", "command", "torch", "python", "host", "gpus", "world_size", "cwd")


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in numbers; None where it has no row."""

    run: MonitoredRun
    steps: int
    p50_ns: float | None
    p99_ns: float | None
    loading_share: float
    peak_rss_mb: float | None
    kinds: tuple[str, ...]  # of what it shows

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON has it."""
        info = self.run.info
        ms = {
            name: None if ns is None else round(ns / 1e6, 4)
            for name, ns in (("p50_ms", self.p50_ns), ("p99_ms", self.p99_ns))
        }
        return {
            "folder": str(self.run.folder),
            "started_at": info.started_at,
            "ended": info.ended,
            "rank": info.rank,
            "steps": self.steps,
            **ms,
            "loading_share": round(self.loading_share, 4),
            "peak_rss_mb": self.peak_rss_mb,
            "commit": info.commit,
            "torch": info.torch,
            "gpus": list(info.gpus),
            "observations": [each.to_dict() for each in observe(self.run.rows, info.slow or 1.0)],
            "windows": [asdict(window) for window in info.windows],
        }


@dataclass(frozen=True, slots=True)
class Shift:
    """From which run on the steps are slower, or faster, and what differs from the run before it."""

    first: int  # position of the first run after it
    before_ns: float
    after_ns: float
    differences: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Return how many times as long a step takes since then."""
        return self.after_ns / self.before_ns


def summary(run: MonitoredRun) -> Summary:
    """Return a run in numbers; its first row, which holds the warm-up, is left out where there are others."""
    rows = run.rows[1:] or run.rows
    total = sum(row.total_ns for row in rows)
    rss = [row.readings.rss_mb for row in rows if row.readings.rss_mb is not None]
    return Summary(
        run=run,
        steps=max(run.info.steps, run.rows[-1].step if run.rows else 0),
        p50_ns=median(row.p50_ns for row in rows) if rows else None,
        p99_ns=percentile(sorted(row.p99_ns for row in rows), 50) if rows else None,
        loading_share=sum(row.phase_ns("loading") for row in rows) / total if total else 0.0,
        peak_rss_mb=round(max(rss), 1) if rss else None,
        kinds=tuple(dict.fromkeys(each.kind for each in observe(run.rows, run.info.slow or 1.0))),
    )


def shift(summaries: Sequence[Summary]) -> Shift | None:
    """Return the one change of level that explains the runs best; None where they keep their level.

    Where to split is what leaves the least variance of the logarithm of the median step; the levels must differ by more
    than the runs on each side do.
    """
    known = [(i, s.p50_ns) for i, s in enumerate(summaries) if s.p50_ns][-200:]  # the newest
    logs = [log(ns) for _, ns in known]
    if len(known) < 3:  # two that differ may be all the spread there is
        return None
    at = min(range(1, len(known)), key=lambda k: _variance(logs[:k]) + _variance(logs[k:]))
    sides = [[ns for _, ns in part] for part in (known[:at], known[at:])]
    before, after = (median(side) for side in sides)
    spread = max(stdev(side) if len(side) > 1 else 0.0 for side in sides)
    # Equal runs on a quiet machine differ by half of 5 %.
    if abs(after / before - 1) < 0.05 or abs(after - before) < 3.0 * spread:
        return None
    first = known[at][0]
    return Shift(first, before, after, _differences(summaries[known[at - 1][0]].run, summaries[first].run))


def history_text(name: str, summaries: Sequence[Summary]) -> list[str]:
    """Return the lines of ``diagnose watch --list NAME``."""
    lines = [f"{'started':<26}{'steps':>9}{'median':>10}{'p99':>10}{'loading':>9}{'memory':>11}  shows"]
    for each in summaries:
        memory = "–" if each.peak_rss_mb is None else f"{each.peak_rss_mb:,.0f} MB"
        ended = "" if each.run.info.ended else " (running or killed)"
        lines.append(
            f"{each.run.info.started_at:<26}{each.steps:>9,}{duration(each.p50_ns):>10}{duration(each.p99_ns):>10}"
            f"{percent(each.loading_share):>9}{memory:>11}  {', '.join(each.kinds)}{ended}".rstrip()
        )
    found = shift(summaries)
    if found is None:
        lines += ["", f"The {len(summaries)} runs of {name} keep their level, as far as their spread shows it."]
        return lines
    word = "slower" if found.ratio > 1 else "faster"
    since = summaries[found.first].run.info.started_at
    more = growth(abs(found.ratio - 1))
    lines += [
        "",
        f"{name} is {more} {word} since {since}: {duration(found.before_ns)} before, {duration(found.after_ns)} after.",
    ]
    lines += [f"  {each}" for each in found.differences or ("Nothing that is known of the runs differs there.",)]
    return lines


def history_json(name: str, summaries: Sequence[Summary]) -> str:
    """Return the JSON of ``diagnose watch --list NAME``."""
    found = shift(summaries)
    change = found and {
        "since": summaries[found.first].run.info.started_at,
        "before_ms": round(found.before_ns / 1e6, 4),
        "after_ms": round(found.after_ns / 1e6, 4),
        "differences": list(found.differences),
    }
    data = {"schema_version": 1, "name": name, "runs": [each.to_dict() for each in summaries], "shift": change}
    return json.dumps(data, indent=2, ensure_ascii=False)


def _variance(values: Sequence[float]) -> float:
    """Return the sum of squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def _differences(before: MonitoredRun, after: MonitoredRun) -> tuple[str, ...]:
    """Return what is known of two runs and differs."""
    found = []
    for name in COMPARED:
        old, new = getattr(before.info, name), getattr(after.info, name)
        if old != new:
            found.append(f"{name}: {_shown(old)} before, {_shown(new)} after")
    return tuple(found)


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value) if value else "unknown"

"""The runs of one name next to each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from diagnose.monitor.run_folder import MonitoredRun
from diagnose.monitor.step_rows import percentile
from diagnose.monitor.trends import observe
from diagnose.text.numbers import duration, percent


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


def history_text(summaries: Sequence[Summary]) -> list[str]:
    """Return the lines of ``diagnose watch --list NAME``."""
    lines = [f"{'started':<26}{'steps':>9}{'median':>10}{'p99':>10}{'loading':>9}{'memory':>11}  shows"]
    for each in summaries:
        memory = "–" if each.peak_rss_mb is None else f"{each.peak_rss_mb:,.0f} MB"
        ended = "" if each.run.info.ended else " (running or killed)"
        lines.append(
            f"{each.run.info.started_at:<26}{each.steps:>9,}{duration(each.p50_ns):>10}{duration(each.p99_ns):>10}"
            f"{percent(each.loading_share):>9}{memory:>11}  {', '.join(each.kinds)}{ended}".rstrip()
        )
    return lines


def history_json(name: str, summaries: Sequence[Summary]) -> str:
    """Return the JSON of ``diagnose watch --list NAME``."""
    data = {"schema_version": 1, "name": name, "runs": [each.to_dict() for each in summaries]}
    return json.dumps(data, indent=2, ensure_ascii=False)

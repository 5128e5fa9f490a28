"""A comparison as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from textwrap import wrap

from diagnose.compare.compare import Change, Comparison
from diagnose.reports.format import duration, percent
from diagnose.reports.kernel_names import shorten
from diagnose.text.plain_text import one_line

__all__ = ["as_json", "as_text", "sentence", "what_changed"]

MOST_LINES = 8  # of each list
WIDTH = 100
NAME = 44  # letters of a kernel's name


def sentence(c: Comparison) -> str:
    """Say in one sentence what became of the step."""
    low, high = c.interval
    certain = "slower" if c.is_slower else "faster" if c.is_faster else "the same, as far as the steps' spread tells"
    before, after = c.before.diagnosis.step_ns, c.after.diagnosis.step_ns
    return (
        f"The step is {certain}: {duration(before)} before, {duration(after)} after; the median "
        f"{'recorded' if c.measured == 'recorded' else 'unprofiled'} step is {c.ratio:.3f} × as long "
        f"({low:.3f} to {high:.3f})."
    )


def what_changed(c: Comparison) -> list[str]:
    """Name the parts that grew or shrank most, one sentence each: causes first, then parts, then kernels."""
    said = [
        *(_said(change, "") for change in c.causes[:3]),
        *(_said(change, "") for change in c.parts[:2] if change.name != "idle"),
        *(_said(change, "kernel ") for change in c.kernels[:2]),
    ]
    return [*said, *([f"The verdict was {c.verdicts[0]} and is {c.verdicts[1]}."] if len(set(c.verdicts)) > 1 else [])]


def as_text(c: Comparison) -> str:
    """Return the comparison for a terminal of 100 columns."""
    return "\n".join(_lines(c))


def as_json(c: Comparison) -> str:
    """Return the comparison as JSON; times are ms per step."""
    lists = {
        name: [_plain(change) for change in getattr(c, name)] for name in ("parts", "causes", "findings", "kernels")
    }
    return json.dumps(
        {
            "schema_version": 1,
            "before": {"name": c.before.name, "step_ms": _ms(c.before.diagnosis.step_ns), "verdict": c.verdicts[0]},
            "after": {"name": c.after.name, "step_ms": _ms(c.after.diagnosis.step_ns), "verdict": c.verdicts[1]},
            "ratio": c.ratio,
            "interval": list(c.interval),
            "measured": c.measured,
            "slower": c.is_slower,
            "faster": c.is_faster,
            **lists,
        },
        indent=2,
        ensure_ascii=True,
        allow_nan=False,
    )


def _lines(c: Comparison) -> Iterator[str]:
    yield from wrap(sentence(c), WIDTH)
    yield f"  before  {one_line(c.before.name)}: {c.verdicts[0]}"
    yield f"  after   {one_line(c.after.name)}: {c.verdicts[1]}"
    title = "Idle by cause" if c.after.diagnosis.partition else "Where the host's time goes"
    for heading, changes in (("Where the step goes", c.parts), (title, c.causes), ("Findings", c.findings)):
        yield from _table(heading, changes)
    yield from _table("Kernels", c.kernels)
    if not (c.before.kernels and c.after.kernels) and c.after.diagnosis.partition:
        yield ""
        yield "Kernels are compared where both sides are traces or captures, not reports."


def _table(heading: str, changes: Sequence[Change]) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield heading
    for change in changes[:MOST_LINES]:
        name = shorten(one_line(change.name), NAME)
        sign = "+" if change.by_ns > 0 else "−"
        times = f"{duration(change.before_ns):>8} {duration(change.after_ns):>8}"
        line = f"  {name:<{NAME}} {times} {sign}{duration(abs(change.by_ns))}"
        yield f"{line}  {change.note}".rstrip()
    if len(changes) > MOST_LINES:
        yield f"  and {len(changes) - MOST_LINES} more"


def _said(change: Change, what: str) -> str:
    more = "more" if change.by_ns > 0 else "less"
    share = f", {percent(abs(change.by_ns) / change.before_ns)}" if change.before_ns > 0 else ""
    return (
        f"{what}{one_line(change.name)}: {duration(abs(change.by_ns))} {more} per step "
        f"({duration(change.before_ns)} before, {duration(change.after_ns)} after{share})."
    )


def _plain(change: Change) -> dict[str, object]:
    return {
        "name": change.name,
        "before_ms": _ms(change.before_ns),
        "after_ms": _ms(change.after_ns),
        "by_ms": _ms(change.by_ns),
        "note": change.note,
    }


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)

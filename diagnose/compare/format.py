"""A comparison as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from diagnose.compare.compare import Change, Comparison
from diagnose.reports.format import duration, percent
from diagnose.reports.language import ENGLISH, current, tr, translated
from diagnose.reports.text_charts import padded
from diagnose.text.kernel_names import shorten
from diagnose.text.plain_text import MAX_WIDTH, middle, one_line

MAX_TABLE_LINES = 8  # of each list


def sentence(c: Comparison) -> str:
    """State what became of the step; every number is of the measure that was evaluated."""
    outcome = c.evaluation.outcome
    if outcome == "not comparable":
        unlike = " ".join(difference.sentence() for difference in c.differences)
        return (
            f"Not comparable. {unlike} Record both alike, or give --allow-differences, which compares them "
            "anyway and lists what differs."
        )
    if outcome == "undecided":
        doubt = "not certain" if c.evaluation.shift else "not tested"
        return f"{step_times(c, doubt)} {c.evaluation.reason} {c.evaluation.remedy}"
    return step_times(c, f"the same within {100 * c.tolerance:g} %" if outcome == "same" else "")


def step_times(c: Comparison, doubt: str = "") -> str:
    """State how many times faster or slower the step is, the steps that were evaluated, and of how many runs."""
    before, after = map(duration, c.steps_ns)
    low, high = sorted((c.interval[0], c.interval[1]) if c.ratio > 1 else (1 / c.interval[1], 1 / c.interval[0]))
    interval = f"{low:.2f}x to {high:.2f}x; " if c.evaluation.shift else ""
    return (
        f"{factor(c)}{doubt and f', {doubt}'}: {before} before, {after} after, mean {c.measured} steps "
        f"({interval}runs: {len(c.before.runs)} before, {len(c.after.runs)} after)."
    )


def factor(c: Comparison) -> str:
    """Return how many times faster or slower the later step is: 1.25x faster."""
    return f"{max(c.ratio, 1 / c.ratio):.2f}x {'slower' if c.ratio > 1 else 'faster'}"


def what_changed(c: Comparison) -> list[str]:
    """Name the parts that grew or shrank most, one sentence each: causes first, then parts, then kernels."""
    changed = [
        *(_sentence_of(change, "") for change in c.causes[:3]),
        *(_sentence_of(change, "") for change in c.parts[:2] if change.name != "idle"),
        *(_sentence_of(change, "kernel ") for change in c.kernels[:2]),
    ]
    verdicts = [f"The verdict was {c.verdicts[0]} and is {c.verdicts[1]}."] if len(set(c.verdicts)) > 1 else []
    return [*changed, *verdicts]


def as_text(c: Comparison, width: int = MAX_WIDTH) -> str:
    """Return the comparison in lines of ``width`` columns."""
    return "\n".join(_lines(c, width))


def as_json(c: Comparison, more: Mapping[str, object] | None = None) -> str:
    """Return the comparison as JSON with ``more`` keys beside it; times are ms per step."""
    lists = {
        name: [_change(change) for change in getattr(c, name)] for name in ("parts", "causes", "findings", "kernels")
    }
    return json.dumps(
        {
            "schema_version": 1,
            "before": _side(c, 0),
            "after": _side(c, 1),
            "outcome": c.evaluation.outcome,
            "reason": c.evaluation.reason,
            "remedy": c.evaluation.remedy,
            "differences": [{"what": d.what, "before": d.before, "after": d.after} for d in c.differences],
            "ratio": c.ratio,
            "interval": list(c.interval),
            "interval_of": "runs" if c.evaluation.shift else "steps",
            "measured": c.measured,
            "slower": c.is_slower,
            "faster": c.is_faster,
            "tolerance": c.tolerance,
            "ignored": list(c.ignored),
            **(more or {}),
            **lists,
        },
        indent=2,
        ensure_ascii=True,
        allow_nan=False,
    )


def _side(c: Comparison, index: int) -> dict[str, object]:
    side = (c.before, c.after)[index]
    return {
        "name": side.name,
        "step_ms": _ms(c.steps_ns[index]),
        "run_steps_ms": [_ms(ns) for ns in side.run_steps(c.measured)],
        "recorded_step_ms": _ms(side.diagnosis.step_ns),
        "verdict": c.verdicts[index],
    }


def _lines(c: Comparison, width: int) -> Iterator[str]:
    yield from _wrapped(sentence(c), width)
    if c.evaluation.outcome != "not comparable":
        for difference in c.differences:
            yield from _wrapped(difference.sentence(), width)
    if c.ignored:
        yield from _wrapped(f"Left out as asked: findings of {', '.join(c.ignored)}.", width)
    for label, side, verdict in (("before", c.before, c.verdicts[0]), ("after", c.after, c.verdicts[1])):
        name = middle(one_line(side.name), width - 12 - len(verdict))
        yield f"  {translated(label):<7} {name}: {translated(verdict)}"
    title = "Idle by cause" if c.after.diagnosis.partition else "What takes the host's time"
    tables = (("Where the step goes", c.parts), (title, c.causes), ("Findings", c.findings), ("Kernels", c.kernels))
    if any(changes for _, changes in tables):
        before, after = duration(c.before.diagnosis.step_ns), duration(c.after.diagnosis.step_ns)
        which = ", one run of each side" if max(len(c.before.runs), len(c.after.runs)) > 1 else ""
        recorded, warning = c.after.diagnosis.step_ns - c.before.diagnosis.step_ns, ""
        if c.evaluation.outcome in ("slower", "faster") and (recorded > 0) is not c.is_slower:
            went = "longer" if recorded > 0 else "shorter"
            warning = (
                f" While it was recorded the step became {went}, so these parts do not show why it is "
                f"{c.evaluation.outcome}."
            )
        yield ""
        yield from _wrapped(f"Below: the mean recorded step, {before} before and {after} after{which}.{warning}", width)
    for heading, changes in tables:
        yield from _table(heading, changes, width)
    unlike = c.evaluation.outcome == "not comparable"
    if not unlike and not (c.before.kernels and c.after.kernels) and c.after.diagnosis.partition:
        yield ""
        yield from _wrapped("Kernels are compared if both sides are traces or captures, not reports.", width)


def _wrapped(english: str, width: int) -> list[str]:
    """Return a sentence in the current language in lines; a Chinese character takes two columns."""
    return wrap(translated(english), width if current() == ENGLISH else width // 2)


def _table(heading: str, changes: Sequence[Change], width: int) -> Iterator[str]:
    if not changes:
        return
    yield ""
    yield translated(heading)
    # Both times, the difference, and the spaces take 31 columns.
    name_width = min(44, width - 31)
    for change in changes[:MAX_TABLE_LINES]:
        name = shorten(translated(one_line(change.name)), name_width)
        sign = "+" if change.by_ns > 0 else "−"
        times = f"{duration(change.before_ns):>8} {duration(change.after_ns):>8}"
        line = f"  {padded(name, name_width)} {times} {sign}{duration(abs(change.by_ns))}"
        note = translated(change.note)
        fits = len(line) + 2 + len(note) <= width
        yield f"{line}  {note}".rstrip() if fits else line
        if not fits:
            yield f"    {note}"
    if len(changes) > MAX_TABLE_LINES:
        yield "  " + tr("and {num} more", num=len(changes) - MAX_TABLE_LINES)


def _sentence_of(change: Change, what: str) -> str:
    more = "more" if change.by_ns > 0 else "less"
    share = f", {percent(abs(change.by_ns) / change.before_ns)}" if change.before_ns > 0 else ""
    return (
        f"{what}{one_line(change.name)}: {duration(abs(change.by_ns))} {more} per recorded step "
        f"({duration(change.before_ns)} before, {duration(change.after_ns)} after{share})."
    )


def _change(change: Change) -> dict[str, object]:
    return {
        "name": change.name,
        "before_ms": _ms(change.before_ns),
        "after_ms": _ms(change.after_ns),
        "by_ms": _ms(change.by_ns),
        "note": change.note,
    }


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)

"""Numbers and source locations as text."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model.charts import FlopUtilisation, KernelTime
from diagnose.model.diagnosis import Where
from diagnose.model.locations import path_tail
from diagnose.model.words import Count, Words
from diagnose.reports.language import counted, tr
from diagnose.text import numbers
from diagnose.text.numbers import duration, growth, percent
from diagnose.text.plain_text import middle

__all__ = [
    "calls",
    "confidence",
    "duration",
    "enumeration",
    "flops",
    "growth",
    "line_of",
    "op_name",
    "path_tail",
    "percent",
    "place",
    "plural",
    "ranks",
    "said",
    "size",
    "summed",
]


def plural(count: float, noun: str) -> str:
    """Return "1 step", "12 steps", "2 copies" in the language that is shown."""
    return counted(f"{count:,.0f}", noun) or numbers.plural(count, noun)


def enumeration(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c" in the language that is shown."""
    *front, last = words
    return tr("{words} and {last}", words=tr(", ").join(front), last=last) if front else last


def line_of(where: Where) -> str:
    """Return "train.py:42" alone, the operator where the line is not known, or ""; of a full path the name alone."""
    if not where.file:
        return middle(op_name(where.op) or where.function or "", 50)
    name = where.file.rpartition("/")[2] if where.file.startswith("/") else path_tail(where.file)
    return name + _lines(where)


def _lines(where: Where) -> str:
    """Return ":12", of a loop ":12–18", "" where the line is not known."""
    if (where.line or 0) <= 0:
        return ""
    return f":{where.line}" if where.last_line is None else f":{where.line}–{where.last_line}"


def op_name(op: str | None) -> str:
    """Return an operator without what autograd puts before the names of its nodes."""
    return (op or "").removeprefix("autograd::engine::evaluate_function: ")


def place(where: Where, limit: int = 40) -> str:
    """Return "train.py:42 in step · aten::item" with the parts that are known, or "".

    Without a line of the user's that of a library follows the operator in brackets.
    """
    parts = []
    if where.file:
        inside = f" {tr('in {function}', function=where.function)}" if where.function else ""
        parts.append(path_tail(where.file, limit) + _lines(where) + inside)
        if where.library:
            parts.append(tr("inside it {library}", library=path_tail(where.library, limit + 20)))
    elif where.function:
        parts.append(where.function)
    if where.op:
        parts.append(middle(op_name(where.op), limit))
    if where.library and not where.file:
        parts.append(f"{parts.pop() if parts else ''} ({path_tail(where.library, limit + 20)})".strip())
    return " · ".join(parts)


def said(words: Words | Count | object) -> str:
    """Return a sentence in the language that is shown; "" for None."""
    if isinstance(words, Count):
        return plural(words.num, words.noun)
    if isinstance(words, Words):
        return tr(words.template, **{name: said(value) for name, value in words.values.items()})
    return "" if words is None else str(words)


def confidence(level: str) -> str:
    """Return "high confidence"."""
    return tr(f"{level} confidence")


def ranks(world_size: int, given: int) -> str:
    """Return "4 ranks", or "1 of 300 ranks" where fewer traces than ranks were given."""
    total = plural(world_size, "rank")
    return total if max(given, 1) >= world_size else tr("{num} of {total}", num=max(given, 1), total=total)


def summed(shares: dict[str, float], keep: int) -> list[tuple[str, float]]:
    """Return the ``keep`` largest entries, largest first, and the rest as one entry named for their number."""
    ranked = sorted(((k, v) for k, v in shares.items() if v > 0), key=lambda item: (-item[1], item[0]))
    if len(ranked) <= keep + 1:
        return ranked
    rest = ranked[keep:]
    return [*ranked[:keep], (tr("{num} smaller causes", num=len(rest)), sum(v for _, v in rest))]


def size(count: int) -> str:
    """Return bytes with three digits, in GB, MB or kB (powers of 1000)."""
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= each:
            return f"{count / each:.3g} {unit}" if count < 1000 * each else f"{count / each:.0f} {unit}"
    return f"{count} B"


def flops(f: FlopUtilisation) -> str:
    """Return what the device computed against its peak, one line."""
    known = (
        "" if f.known_share > 0.995 else tr("; counted for {share} of its compute time", share=percent(f.known_share))
    )
    own = ""
    if f.own_share > 1.005 * f.share:
        own = tr("; {share} of the peaks of the precisions used", share=percent(f.own_share))
    return tr(
        "MFU {share}: {rate} TFLOP/s over the step, of the {device}'s 16-bit dense peak{own}{known}",
        share=percent(f.share),
        rate=f"{f.tflops:.3g}",
        device=f.device,
        own=own,
        known=known,
    )


def calls(kernel: KernelTime) -> str:
    """Return "24 ×", and for less than one call a step "0.2 ×"."""
    return f"{kernel.calls_per_step:,.0f} ×" if kernel.calls_per_step >= 1 else f"{kernel.calls_per_step:.1f} ×"

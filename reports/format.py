"""Numbers and source locations as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diagnose.model.charts import FlopUtilisation
from diagnose.model.diagnosis import Diagnosis, Where
from diagnose.model.rules import WORK, Legend
from diagnose.model.words import Count, Words
from diagnose.reports.language import counted, tr
from diagnose.text import plain_text as numbers
from diagnose.text.plain_text import duration, growth, middle, percent

__all__ = [
    "CATEGORIES",
    "FAMILY_COLOURS",
    "PARTS",
    "PATH",
    "PHASES",
    "TABULAR",
    "TERMS",
    "confidence",
    "duration",
    "enumeration",
    "flops",
    "glossary",
    "growth",
    "line_of",
    "op_name",
    "path_tail",
    "percent",
    "place",
    "plural",
    "ranks",
    "said",
    "shown_phases",
    "size",
    "summed",
]

# The words of a report that a reader may not know, each explained in a sentence.

TERMS = {
    "step": "One training or inference step, from its begin to that of the next one; the steady ones are analysed.",
    "queue depth": "Launches that the host has issued and the device has not finished; with an empty queue it idles.",
    "launch": "A call of the host that puts a kernel or a copy on a stream of the device.",
    "idle": "Time in which the device runs nothing at all.",
    "alone": "Communication or copies that no computation overlaps: exposed, they make the step longer.",
    "critical path": "The chain of work and waits that determines the step time; nothing else makes it longer.",
    "replay": "The recorded steps as a dependency graph, scheduled again with a change; all predictions come from it.",
    "roofline": "What a kernel could reach at best: the rate of the arithmetic units, or what the memory delivers.",
    "confidence": "How surely the recording shows the cause, not only the cost.",
    "95 % interval": "Where the true speed-up lies, as far as repeated runs of the script show it.",
}


def glossary(d: Diagnosis, causes: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return (anchor, term, explanation): the general terms, then the rules that this report names."""
    terms = [
        (f"term-{term.replace(' ', '-').replace('%', 'percent')}", tr(term), tr(text)) for term, text in TERMS.items()
    ]
    named = dict.fromkeys([*(f.rule for f in d.findings), *causes])
    return [*terms, *((f"term-{rule}", rule, _of_rule(rule, d.legends.get(rule, Legend()).label)) for rule in named)]


def _of_rule(rule: str, label: str) -> str:
    if rule == WORK:
        return tr("The step's own operators on the host.")
    full = tr("In full: {command}", command=f"diagnose explain {rule}")
    return tr("{label}. {full}", label=f"{label[:1].upper()}{label[1:]}", full=full) if label else full


# Labels and colours of everything in a report that is not a rule; those of rules come with the diagnosis.

PARTS = {
    "compute": Legend("computing", "#5b7fa6"),
    "exposed_communication": Legend("communicating, computing nothing meanwhile", "#3f8f8c"),
    "exposed_copy": Legend("copying, computing nothing meanwhile", "#8f7f4f"),
    "idle": Legend("idle", "#e5484d"),
}
"""The partition of a step; the fields of ``Partition``, in the order they are shown."""

TABULAR = {
    "compute": "computing",
    "exposed_communication": "communication not overlapped",
    "exposed_copy": "copies not overlapped",
}
"""The names of these parts where there is little room: in a bar and in a table."""

FAMILY_COLOURS = ("#5b7fa6", "#7d9cbd", "#44688f", "#9db6cf", "#34557a")
"""The colours of what a device does, family after family."""

PHASES = {
    "training": Legend("the rest of the step, with forward, backward and update", "#5b7fa6"),
    "loading": Legend("waiting for the next batch", "#a3946a"),
    "evaluation": Legend("in evaluation mode, or batches without gradients", "#c2577a"),
    "rollout": Legend("gradients off several times before the backward pass, and what lies between", "#a06cc9"),
    "inference": Legend("gradients off before the backward pass, or steps without one", "#a48ee6"),
    "checkpoint": Legend("writing a checkpoint", "#f2811d"),
    "other": Legend("between the update and the next batch", "#93a4b8"),
}
"""The phases of a run."""

MIN_PHASE_SHARE = 0.01  # of the run: phases that take less beside the training are not worth a table

CATEGORIES = {
    "compute": "#5b7fa6",
    "communication": "#4f9c9a",
    "copy": "#a3946a",
    "operator": "#93a4b8",
    "annotation": "#b9c4d0",
    "runtime": "#76879c",
}
"""The colour of a span of the timeline. Busy time is calm, so that the gaps stand out."""


PATH = {
    "compute": "#5b7fa6",
    "communication": "#4f9c9a",
    "copy": "#a3946a",
    "host": "#f2811d",
    "latency": "#a48ee6",
}
"""The colour of a category of the critical path: the host in a colour of its own, since the step waits for it."""


def shown_phases(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of a run where there are others than its steps and their batches, else nothing."""
    steps = max(("training", "inference"), key=lambda name: phases.get(name, 0.0))
    others = (share for name, share in phases.items() if name not in (steps, "loading"))
    return dict(phases) if max(others, default=0.0) >= MIN_PHASE_SHARE else {}


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
    return f"{name}:{_lines(where)}" if where.line is not None and where.line > 0 else name


def _lines(where: Where) -> str:
    """Return "12", of a loop "12–18"."""
    return f"{where.line}–{where.last_line}" if where.last_line is not None else str(where.line)


def op_name(op: str | None) -> str:
    """Return an operator without what autograd puts before the names of its nodes."""
    return (op or "").removeprefix("autograd::engine::evaluate_function: ")


def path_tail(path: str, limit: int = 40) -> str:
    """Return the end of a path that is longer than ``limit`` characters, cut at folders where it can be."""
    if len(path) <= limit:
        return path
    tail = path[-(limit - 1) :]
    cut = tail.find("/")
    return "…" + (tail[cut:] if 0 <= cut < len(tail) - 1 else tail)


def place(where: Where, limit: int = 40) -> str:
    """Return "train.py:42 in step · aten::item" with the parts that are known, or "".

    Without a line of the user's that of a library follows the operator in brackets.
    """
    parts = []
    if where.file:
        line = f":{_lines(where)}" if where.line is not None and where.line > 0 else ""
        inside = f" {tr('in {function}', function=where.function)}" if where.function else ""
        parts.append(path_tail(where.file, limit) + line + inside)
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
    known = {
        "high": tr("high confidence"), "medium": tr("medium confidence"), "low": tr("low confidence"),
    }  # fmt: skip
    return known.get(level, level)


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

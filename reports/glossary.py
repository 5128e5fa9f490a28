"""The words of a report that a reader may not know, each explained in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.rules import WORK, Legend
from diagnose.reports.language import tr

__all__ = ["TERMS", "glossary"]

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

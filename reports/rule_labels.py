"""Labels and colours of everything in a report that is not a rule, and the words that a reader may not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.rules import WORK, Legend
from diagnose.reports.language import tr

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

PALETTE = ("#d57b14", "#8a65d5", "#0c8114", "#c04980", "#006ccb", "#c96fd5", "#7b9a00", "#a85320")
"""The colours of causes, the largest first; from its end those of what a device does, after that of computing."""


def coloured(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis with a colour of the palette for each cause that it has, the answering one first."""
    shares = d.idle_by_cause or d.host_by_cause
    gaps = d.picture.gaps if d.picture is not None else ()
    causes = [
        d.dominant or "",
        *sorted(shares, key=lambda cause: -shares[cause]),
        *(cause for rank in d.ranks for cause in rank.idle_by_cause),
        *(finding.rule for finding in d.findings),
        *(gap.cause for gap in gaps),
    ]
    open_ones = [c for c in dict.fromkeys(causes) if c in d.legends and d.legends[c].colour == Legend().colour]
    found = {c: d.legends[c]._replace(colour=colour) for c, colour in zip(open_ones, PALETTE, strict=False)}
    return replace(d, legends={**d.legends, **found})


def part_colours(d: Diagnosis, parts: Sequence[tuple[str, float]]) -> list[str]:
    """Return the colours of the parts of the answer's bar; what is neither part of a step nor cause is device work."""
    known = {TABULAR.get(name, name): style.colour for name, style in PARTS.items()}
    known |= {legend.label: legend.colour for legend in d.legends.values()}
    work = iter((PARTS["compute"].colour, *reversed(PALETTE)) * len(parts))
    return [known[name] if name in known else next(work) for name, _ in parts]


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


CATEGORIES = {
    "compute": "#5b7fa6",
    "communication": "#4f9c9a",
    "copy": "#a3946a",
    "operator": "#93a4b8",
    "annotation": "#b9c4d0",
    "runtime": "#76879c",
}
"""The colour of a span of the timeline. Busy time is calm, so that the gaps stand out."""


PATH = {"compute": "#5b7fa6", "communication": "#4f9c9a", "copy": "#a3946a", "host": "#f2811d", "latency": "#a48ee6"}
"""The colour of a category of the critical path: the host in a colour of its own, since the step waits for it."""


def shown_phases(phases: Mapping[str, float]) -> dict[str, float]:
    """Return the phases of a run where there are others than its steps and their batches, else nothing."""
    steps = max(("training", "inference"), key=lambda name: phases.get(name, 0.0))
    others = (share for name, share in phases.items() if name not in (steps, "loading"))
    # Of the run: phases that take less beside the training are not worth a table.
    return dict(phases) if max(others, default=0.0) >= 0.01 else {}


TERMS = {
    "step": "One training or inference step, from its start to that of the next one; the steady ones are analysed.",
    "queue depth": "Launches that the host has issued and the device has not finished; with an empty queue it idles.",
    "launch": "A call of the host that puts a kernel or a copy on a stream of the device.",
    "idle": "Time in which the device runs nothing at all.",
    "alone": "Communication or copies that no computation overlaps: exposed, they make the step longer.",
    "critical path": "The chain of work and waits that determines the step time; nothing else makes it longer.",
    "replay": "The recorded steps as a dependency graph, scheduled again with a change; all predictions come from it.",
    "roofline": "What a kernel could reach at best: the rate of the arithmetic units, or what the memory delivers.",
    "confidence": "How surely the recording shows the cause, not only the cost.",
    "95 % interval": "The range of the true speed-up, as far as repeated runs of the script show it.",
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

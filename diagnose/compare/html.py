"""A comparison, or a gate's answer, as a page: before and after side by side, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.compare.compare import MIN_LISTED_SHARE, Comparison
from diagnose.compare.format import factor, sentence
from diagnose.compare.gate import GateResult
from diagnose.model.diagnosis import Diagnosis
from diagnose.reports.charts import colour_of, legible
from diagnose.reports.format import duration
from diagnose.reports.html import render_page
from diagnose.reports.language import tr, translated
from diagnose.reports.rule_labels import PARTS, TABULAR

_PILLS = {
    "slower": ("Slower", "bad"), "faster": ("Faster", "good"), "same": ("The same", "good"),
    "undecided": ("Not certain", "warn"), "not comparable": ("Not comparable", "warn"),
}  # fmt: skip
_GATES = {
    "passed": ("Passed", "good"), "failed": ("Failed", "bad"), "undecided": ("Undecided", "warn"),
    "not comparable": ("Not comparable", "warn"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Shown:
    label: str
    name: str
    verdict: str
    step_ns: float
    runs: Sequence[float]
    parts: Sequence[tuple[str, str, float, bool]]  # name, colour, share of the recorded step, whether it is idle


def as_html(c: Comparison, gate: GateResult | None = None) -> str:
    """Return the page of a comparison; with ``gate`` that of the gate which it decided."""
    pill, tone = _GATES[gate.verdict] if gate is not None else _PILLS[c.evaluation.outcome]
    sides = [
        _Shown(tr(label), side.name, verdict, ns, side.run_steps(c.measured), _parts(side.diagnosis))
        for label, side, verdict, ns in zip(
            ("Before", "After"), (c.before, c.after), c.verdicts, c.steps_ns, strict=True
        )
    ]
    is_alike = c.evaluation.outcome != "not comparable"
    causes = "Idle by cause" if c.after.diagnosis.partition else "What takes the host's time"
    tables = [("Where the step goes", c.parts), (causes, c.causes), ("Findings", c.findings), ("Kernels", c.kernels)]
    return render_page(
        "compare.html",
        scripts=["report.js"],
        data={},
        legends=c.after.diagnosis.legends,
        drawn=True,
        command="gate" if gate is not None else "compare",
        pill=tr(pill),
        tone=tone,
        headline=translated(_headline(c)),
        before=sides[0],
        after=sides[1],
        longest=max(c.steps_ns),
        ratio=c.ratio if is_alike else None,
        interval=c.interval,
        sentence=translated(gate.text if gate is not None else sentence(c)),
        notes=[translated(d.sentence()) for d in c.differences],
        tables=[
            (translated(title), changes[:40], max(abs(change.by_ns) for change in changes))
            for title, changes in tables
            if changes
        ],
    )


def _headline(c: Comparison) -> str:
    outcome = c.evaluation.outcome
    if outcome == "not comparable":
        return "The two sides were not recorded alike"
    before, after = map(duration, c.steps_ns)
    if outcome == "undecided":
        return f"{factor(c)}, {'not certain' if c.evaluation.shift else 'not tested'}: {before} → {after}"
    return f"{'The same' if outcome == 'same' else factor(c)}: {before} → {after}"


def _parts(d: Diagnosis) -> list[tuple[str, str, float, bool]]:
    """Return what the step consists of: work, then idle time by cause."""
    found: list[tuple[str, str, float, bool]] = []
    if d.partition is not None:
        found = [
            (TABULAR.get(name, name), legible(style.colour), getattr(d.partition, name), name == "idle")
            for name, style in PARTS.items()
            if name != "idle" or not d.idle_by_cause
        ]
    causes = d.idle_by_cause or d.host_by_cause
    found += [(cause, colour_of(cause, d.legends), share, True) for cause, share in causes.items()]
    return [part for part in found if part[2] >= MIN_LISTED_SHARE]

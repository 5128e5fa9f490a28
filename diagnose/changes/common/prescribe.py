"""From a finding to its prescriptions, and from a prescription to what it does to the recorded steps."""

from __future__ import annotations

from diagnose.analyzers import META
from diagnose.changes import CHANGES
from diagnose.changes.common.change import Change
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.forecast import middle_ns
from diagnose.replay.effects import Effect, effect_of_share
from diagnose.tables import Tables

__all__ = ["effect_of", "prescribe"]


def prescribe(finding: Finding, step_ns: float) -> list[Prescription]:
    """Return the changes that the finding's rule names and that apply, in the order of its META.

    What they save is bounded here by shares of what the finding costs.
    """
    made = (_prescription(CHANGES[name], finding, step_ns) for name in META[finding.rule].changes)
    return [prescription for prescription in made if prescription is not None]


def _prescription(change: Change, finding: Finding, step_ns: float) -> Prescription | None:
    advice = change.advice_for(finding, step_ns)
    if advice is None:
        return None
    least_ns, most_ns = finding.lost_ns * advice.least, finding.lost_ns * advice.most
    return Prescription(
        rule=finding.rule,
        id=change.id,
        title=advice.title or change.title,
        before=advice.before,
        after=advice.after,
        saves_ns=(least_ns, most_ns),
        predicted_step_ns=middle_ns(step_ns - most_ns, step_ns - least_ns) if advice.most > 0 else None,
        safety=change.numerics.safety,
        needs=advice.needs,
        remedy=change.remedy,
        arguments=advice.arguments,
    )


def effect_of(t: Tables, finding: Finding, prescription: Prescription) -> Effect | None:
    """Return what a prescription does to the recorded steps, None where no graph shows it.

    That is the change's own model, where it has one, and otherwise the part of the finding's cause that it takes away.
    """
    change = CHANGES.get(prescription.id)
    model = change.effect if change is not None and t.device_id >= 0 else None
    effect = model(t, finding) if model is not None else None
    if effect is not None or finding.lost_ns <= 0:
        return effect
    least, most = (min(max(saved / finding.lost_ns, 0.0), 1.0) for saved in prescription.saves_ns)
    return effect_of_share(t, finding, META[finding.rule].cause, (least, most)) if most > 0 else None

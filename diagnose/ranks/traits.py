"""What the comparison of ranks has to know of the rules that account for a rank's time, as the rules state it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diagnose.model.rules import RuleMeta

__all__ = ["CauseTraits", "traits_of"]


@dataclass(frozen=True, slots=True)
class CauseTraits:
    """Ids of rules, by what their time means between ranks."""

    waits: frozenset[str]  # waiting for other ranks, not the rank's own
    host: frozenset[str]  # grows where a host executes the same more slowly
    operators: frozenset[str]  # of these: as its operators take longer
    unknown: frozenset[str]  # explains nothing
    copies: str  # waiting for copies that nothing hides


def traits_of(rules: Iterable[RuleMeta]) -> CauseTraits:
    """Return them as the rules state them."""
    rules = tuple(rules)
    return CauseTraits(
        frozenset(m.id for m in rules if m.awaits_ranks),
        frozenset(m.id for m in rules if m.paced_by),
        frozenset(m.id for m in rules if m.paced_by == "dispatch"),
        frozenset(m.id for m in rules if not m.explains or (m.kind == "trust" and not m.one_off)),
        next(m.id for m in rules if m.cause == "copy"),
    )

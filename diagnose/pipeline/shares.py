"""What of a rank's own findings the comparison of ranks accounts for.

One rank's recording shows how long it is in a collective, not that it waits there for another rank; that its steps are
long now and then, not that another rank works in them; that a loop is slow, not that half of it is for other ranks.
Each time counts once: in the finding of all ranks that has its cause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from diagnose.analyzers import META
from diagnose.answer import in_order, worth_ns
from diagnose.model.diagnosis import Diagnosis, Finding, Forecast, Waterfall, middle_ns
from diagnose.model.job import PURPOSES
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.locations import FRAME, Where
from diagnose.model.rules import LATE_RANKS, LONE_RANK, REDUCED_AGAIN
from diagnose.ranks.comparison import Comparison
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration

EXPOSED = next(rule for rule, meta in META.items() if meta.cause == "collective")
# Rules of the collectives that serve one purpose, and of those that are many whatever they serve.
_OF_PURPOSE = tuple(purpose for purpose in PURPOSES if purpose in META)
_OF_MANY = tuple(
    rule for rule, meta in META.items() if meta.awaits_ranks and meta.kind == "kernel" and rule not in PURPOSES
)
_WAITING = "{} more is waiting for other ranks, which no change of the exchange removes."
_ADDED_UP = "{} more is for results that are only added up: one reduction of the sum would do."
_THROWN_AWAY = "{} more is for other ranks: this rank throws it away."


def without_others(own: Diagnosis, c: Comparison, rank: int) -> Diagnosis:
    """Return a rank's diagnosis without what its collectives wait for others, and without work that is for others."""
    for rule in (EXPOSED, *_OF_PURPOSE):
        own = left_of(own, rule, _transfer_share(c, rank, rule), _WAITING)
    receives = next(p.receives for p in c.ranks if p.rank == rank)
    own = left_of(own, EXPOSED, _less(own, EXPOSED, receives.waited_ns if receives is not None else 0.0), _WAITING)
    for rule in _OF_MANY:
        own = left_of(own, rule, _less(own, rule, c.waits_ns.get(rank) or 0.0), _WAITING)
    if c.sums is not None:
        own = left_of(own, EXPOSED, _less(own, EXPOSED, c.sums.saved_ns), _ADDED_UP)
    if c.whole is not None:
        call = {(w.file, w.line) for w in c.whole.where[:1]}
        places = [(f.rule, w) for f in own.findings for w in f.where[:1]]
        inside = [rule for rule, w in places if (w.file, w.line) in call or _functions(w) & c.whole.functions]
        for rule in inside:
            own = left_of(own, rule, 1 / len(c.ranks), _THROWN_AWAY)
    return own


def _transfer_share(c: Comparison, rank: int, rule: str) -> float:
    """Return the share of a rank's time in a rule's collectives, as far as nothing hides them, that is no waiting.

    All ranks leave a collective together, so the one that is inside for the shortest time shows what it takes.
    Purposes that have a rule are counted by themselves.
    """
    at = next(i for i, p in enumerate(c.ranks) if p.rank == rank)
    p = c.ranks[at]
    own = (kind.purpose if kind.purpose in _OF_PURPOSE else EXPOSED for kind in p.kinds)
    mine = np.array([each == rule for each in own], bool)
    parts = np.flatnonzero(c.matches.rank == at)
    waited = c.waits.exposed[parts[mine[p.collectives.kind[c.matches.row[parts]]]]].sum()
    alone = p.collectives.alone[mine[p.collectives.kind]].sum()
    return float(np.clip(1 - waited / alone, 0.0, 1.0)) if alone else 1.0


def _less(own: Diagnosis, rule: str, ns: float) -> float:
    """Return what share of a rule's finding is left without so much of it."""
    lost_ns = next((f.lost_ns for f in own.findings if f.rule == rule), 0.0)
    return max(1 - ns / lost_ns, 0.0) if lost_ns else 1.0


def left_of(d: Diagnosis, rule: str, share: float, text: str) -> Diagnosis:
    """Return the diagnosis with a share of what a rule's finding costs, and of what its changes save.

    ``text`` is what is said of the rest. What the rank's own recording shows to be waiting is not in the savings any
    more.
    """
    whole = next((f for f in d.findings if f.rule == rule), None)
    if whole is None or share >= 1:
        return d
    known = whole.facts.get("awaits_ranks") if text == _WAITING else None
    left = min(share / max(1 - known, share, 1e-9), 1.0) if isinstance(known, float) else share
    moved = _part_of(whole, share, text)
    others = [f for f in d.findings if f is not whole]
    is_named = moved.lost_ns >= THRESHOLDS.naming_share * d.step_ns
    prescribed = []
    gone = set()
    for p in d.prescriptions:
        if p.rule != rule:
            prescribed.append(p)
            continue
        least, most = (ns * left for ns in p.saves_ns)
        is_predicted = p.predicted_step_ns is not None
        predicted = middle_ns(d.step_ns - most, d.step_ns - least) if is_predicted else None
        prescribed.append(replace(p, saves_ns=(least, most), predicted_step_ns=predicted))
        if not is_named or (is_predicted and most < MIN_GAIN_SHARE * d.step_ns):
            gone.add(p.id)
    kept = {p.id: 0.0 if p.id in gone else left for p in prescribed if p.rule == rule}
    return replace(
        d,
        findings=tuple(in_order([*others, moved] if is_named else others)),
        prescriptions=tuple(p for p in prescribed if p.id not in gone),
        waterfall=_waiting_left_in(d.waterfall, kept) if d.waterfall is not None else None,
    )


def _part_of(finding: Finding, share: float, text: str) -> Finding:
    moved = replace(
        finding,
        lost_ns=finding.lost_ns * share,
        relief_ns=None if finding.relief_ns is None else finding.relief_ns * share,
        evidence=(*finding.evidence, text.format(duration(finding.lost_ns * (1 - share)))),
        facts={**finding.facts, **({"awaits_ranks": 1 - share} if text == _WAITING else {})},
    )
    return replace(moved, worth_ns=worth_ns(moved, META[moved.rule]))


def counted_once(own: Diagnosis, found: Sequence[Finding], c: Comparison, rank: int) -> tuple[Diagnosis, list[Finding]]:
    """Return the shown rank's diagnosis and the ranks' findings where what one rank does alone counts once.

    Long steps of the run that are of this work, or wait for it, are its cost: all of them were timed. What is waited
    for that rank in the recorded window is the same waiting, and so is that in reductions which are not needed.
    """
    lone = next((f for f in found if f.rule == LONE_RANK), None)
    stalls = _of_lone_rank(own, c) if lone is not None else []
    longest_ns = max((f.lost_ns for f in stalls), default=0.0)
    known = [replace(f, lost_ns=max(f.lost_ns, longest_ns)) if f.rule == LONE_RANK else f for f in found]
    waited_ns = sum(f.lost_ns for f in known if f.rule in (LONE_RANK, REDUCED_AGAIN))
    late = (replace(f, lost_ns=max(f.lost_ns - waited_ns, 0.0)) if f.rule == LATE_RANKS else f for f in known)
    kept = [f for f in late if f.lost_ns >= THRESHOLDS.naming_share * c.step_ns or f.rule == LONE_RANK]
    if lone is not None and c.lone is not None and c.ranks[c.lone.rank].rank != rank:
        own = left_of(own, EXPOSED, _less(own, EXPOSED, max(lone.lost_ns, longest_ns)), _WAITING)
    return _without({f.rule for f in stalls}, own), kept


def _of_lone_rank(own: Diagnosis, c: Comparison) -> list[Finding]:
    """Return the findings of the whole run that are of what one rank does alone, or of waiting for it."""
    if c.lone is None:
        return []
    within = {(w.file, w.line) for w in c.lone.lines}
    at = within | {(w.file, w.line) for w in c.lone.waiting} | c.lone.callers
    runs = [f for f in own.findings if META[f.rule].kind == "run"]
    places = [[place for w in f.where[:1] for place in ((w.file, w.line), *_callers(w))] for f in runs]
    return [f for f, each in zip(runs, places, strict=True) if within & {*each} or at & {*each[:1]}]


def _callers(where: Where) -> list[tuple[str, int]]:
    """Return file and line of each frame of a place's stack."""
    return [(frame["file"], int(frame["line"])) for frame in filter(None, map(FRAME.match, where.stack))]


def _functions(where: Where) -> set[tuple[str | None, str | None]]:
    """Return file and name of a place's function and of its callers."""
    frames = filter(None, map(FRAME.match, where.stack))
    return {(where.file, where.function), *((frame["file"], frame["function"]) for frame in frames)}


def _without(rules: Collection[str], d: Diagnosis) -> Diagnosis:
    """Return a diagnosis without the findings of some rules, and without their changes."""
    gone = {p.id: 0.0 for p in d.prescriptions if p.rule in rules}
    return replace(
        d,
        findings=tuple(f for f in d.findings if f.rule not in rules),
        prescriptions=tuple(p for p in d.prescriptions if p.id not in gone),
        waterfall=_waiting_left_in(d.waterfall, gone) if d.waterfall is not None else None,
    )


def _waiting_left_in(waterfall: Waterfall, kept: Mapping[str, float]) -> Waterfall:
    """Return the forecasts with the share that is left of what changes save; without the changes of which none is."""
    more = {
        after.ids[-1]: (before.step_ns - after.step_ns) * (1 - kept[after.ids[-1]])
        for before, after in pairwise(waterfall.forecasts)
        if after.ids[-1] in kept
    }
    gone = {name for name in more if not kept[name]}
    known = {frozenset(f.ids): f for f in waterfall.combinations}

    def longer(f: Forecast) -> Forecast:
        """Return a forecast without the changes that are gone: as replayed, or else longer by what they save."""
        ids = tuple(name for name in f.ids if name not in gone)
        without = known.get(frozenset(ids))
        ns = sum(more.get(name, 0.0) for name in (f.ids if without is None else ids))
        by = without or f
        return f._replace(ids=ids, step_ns=by.step_ns + ns, low_ns=by.low_ns + ns, high_ns=by.high_ns + ns)

    chain = tuple(longer(f) for f in waterfall.forecasts if not f.ids or f.ids[-1] not in gone)
    combinations = tuple(longer(f) for f in waterfall.combinations if not gone & {*f.ids})
    return waterfall._replace(forecasts=chain, combinations=combinations)

"""Answers against the truth, by the rules of pages/simulation.md, which were fixed before any answer was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from simulation.cases import Case
from simulation.checks import faults
from simulation.dialects import Dialect, dialects_of
from simulation.kineto import write_run
from simulation.truth import Truth, truth_of
from simulation.wastes import KINDS, SILENT

if TYPE_CHECKING:
    from diagnose import Diagnosis

__all__ = ["Answer", "Claim", "Score", "WasteScore", "bounded_rules", "compared", "natural_rules", "score"]

MIN_SAVING = 0.02
MIN_CLAIM = 0.05
MIN_BEST_SHARE = 0.7
BROAD = ("launch-bound", "exposed-communication")  # as second names: what they prescribe removes more than the waste
UNCOMPARED = ("many-launches", "python-between-operators")  # launch-bound is their first name
CONTRADICTIONS = {("device", "cpu-bound"), ("host", "kernel-bound")}
# The most that a rule's claims can save: a family of truth.BOUNDS; rules that are not here have their own truth below.
FAMILIES = {
    "launch-bound": "launches",
    "host-sync": "waits",
    "data-stall": "loader",
    "python-stall": "host",
    "gc-pause": "host",
    "off-cpu": "host",
    "unexplained-host": "host",
    "host-compute": "host",
    "recompilation": "compile",
    "exposed-copy": "copies",
    "pcie-bound": "copies",
    "exposed-communication": "communication",
    "straggler": "communication",
    "small-collectives": "communication",
    "buffer-broadcast": "communication",
    "host-collective": "communication",
    "allocator-stall": "allocator",
    "stream-dependency": "streams",
    "unfused-elementwise": "pointwise",
    "layout-copy": "layout",
    "unfused-attention": "attention",
    "slow-kernel": "kernels",
    "at-roofline": "kernels",
    "small-grid": "kernels",
    "memset-traffic": "kernels",
    "scatter-atomics": "kernels",
    "kernel-latency": "latency",
}
PLANTED_ONLY = {"full-precision-matmul": "float32-products", "recompute": "checkpoint-all"}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a prescription says it saves, and what is true of it; shares of the step."""

    rule: str
    least: float
    most: float
    saving: float | None  # the planted or natural saving that it is about; None where there is only a bound
    bound: float

    @property
    def middle(self) -> float:
        """Return the middle of the range."""
        return (self.least + self.most) / 2

    @property
    def false_alarm(self) -> bool:
        """Return whether it claims what is not there."""
        return self.middle >= MIN_CLAIM and max(self.bound, self.saving or 0.0) < MIN_SAVING


@dataclass(frozen=True, slots=True)
class WasteScore:
    """One planted waste: its saving, and the claim about it."""

    kind: str
    saving: float
    claimed: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered to one file or the files of a run."""

    dialect: str
    verdict: str
    dominant: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """One case, scored."""

    name: str
    family: str
    ranks: int
    dialect: str
    marked: bool  # with ProfilerStep#
    answer: Answer
    limit: str
    step_ns: float
    diagnosed_step_ns: float
    best: str  # kind of waste, "" where none saves 2 %
    best_saving: float
    right: bool
    by_nature: bool
    wastes: tuple[WasteScore, ...] = ()
    claims: tuple[Claim, ...] = ()
    broken: tuple[str, ...] = ()
    others: tuple[Answer, ...] = field(default=())  # in other dialects

    @property
    def false_alarms(self) -> tuple[Claim, ...]:
        """Return the claims of what is not there."""
        return tuple(claim for claim in self.claims if claim.false_alarm)

    @property
    def contradicts(self) -> bool:
        """Return whether the verdict contradicts what limits the step."""
        return (self.limit, self.answer.verdict) in CONTRADICTIONS


def score(case: Case, *, all_dialects: bool = False) -> Score:
    """Run a case, let it be diagnosed, and compare."""
    truth = truth_of(case.situation)
    recorded = case.situation.recorded()
    with TemporaryDirectory() as folder:
        diagnosis, answer = _diagnose(write_run(recorded, case.dialect, Path(folder)), case.dialect)
    others = []
    if all_dialects:
        for dialect in dialects_of(case.situation.machine.gpu.vendor):
            with TemporaryDirectory() as folder:
                others.append(_diagnose(write_run(recorded, dialect, Path(folder)), dialect)[1])
    claims = tuple(_claims(diagnosis, truth, case.dialect)) if diagnosis else ()
    best = truth.best if truth.best_saving >= MIN_SAVING else None
    right, by_nature = _judge(answer, truth, case.dialect, claims, best)
    return Score(
        name=case.name,
        family=case.family,
        ranks=len(recorded.ranks),
        dialect=case.dialect.name,
        marked=case.dialect.marks,
        answer=answer,
        limit=truth.limit,
        step_ns=truth.step_ns,
        diagnosed_step_ns=diagnosis.step_ns if diagnosis else 0.0,
        best=best or "",
        best_saving=truth.best_saving,
        right=right,
        by_nature=by_nature,
        wastes=tuple(_waste_scores(truth, claims, case.dialect)),
        claims=claims,
        broken=tuple(faults(recorded)),
        others=tuple(others),
    )


def names_of(kind: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the rules that name a kind of waste rightly in a dialect."""
    found = KINDS[kind]
    return (*found.rules, *SILENT) if found.silent and dialect.stacks != "frames" else found.rules


def _diagnose(paths: list[Path], dialect: Dialect) -> tuple[Diagnosis | None, Answer]:
    import diagnose

    try:
        found = diagnose.analyze_trace(*paths)
    except Exception as error:  # counted, not raised: the table shows it
        return None, Answer(dialect.name, "error", "", f"{type(error).__name__}: {error}")
    return found, Answer(dialect.name, found.verdict, found.dominant or "")


def _judge(
    answer: Answer, truth: Truth, dialect: Dialect, claims: tuple[Claim, ...], best: str | None
) -> tuple[bool, bool]:
    """Return whether the cause is right, and whether it is right by nature."""
    if answer.error:
        return False, False
    if best is None:
        return not any(claim.false_alarm for claim in claims), False
    enough = MIN_BEST_SHARE * truth.best_saving
    for kind in truth.without:
        if answer.dominant in names_of(kind, dialect) and truth.saving(kind) >= enough:
            return True, False
    natural = _natural(answer.dominant, truth)
    return False, natural is not None and natural >= truth.best_saving


def _natural(rule: str, truth: Truth) -> float | None:
    """Return what removing a cause that the program has by itself saves, None for rules without such a truth."""
    if rule in ("exposed-copy", "pcie-bound"):
        return truth.copied_ahead
    if rule == "exposed-communication":
        return truth.bound("communication")
    if rule in SILENT:  # environments that compute on the host
        return truth.silence(frozenset())
    return truth.graphed if rule == "launch-bound" else truth.fused if rule == "unfused-optimizer" else None


def natural_rules(truth: Truth, least: float) -> tuple[str, ...]:
    """Return the rules that name what the program costs by itself, if removing that saves at least so much."""
    named = ("exposed-copy", "pcie-bound", "exposed-communication", *SILENT, "launch-bound", "unfused-optimizer")
    return tuple(rule for rule in named if (_natural(rule, truth) or 0.0) >= least)


def bounded_rules(truth: Truth) -> tuple[str, ...]:
    """Return the rules whose whole family of costs, set to nothing, saves enough for no claim to be false."""
    return tuple(rule for rule, family in FAMILIES.items() if truth.bound(family) >= MIN_SAVING)


def _claims(diagnosis: Diagnosis, truth: Truth, dialect: Dialect) -> list[Claim]:
    """Return what each change is said to save, and of findings without one what a step without them is said to save."""
    said = [(each.rule, each.saves_ns) for each in diagnosis.prescriptions]
    with_change = {rule for rule, _ in said}
    said += [(f.rule, (f.worth_ns, f.worth_ns)) for f in diagnosis.findings if f.rule not in with_change and f.worth_ns]
    found = []
    for rule, saves_ns in said:
        least, most = (ns / diagnosis.step_ns for ns in saves_ns)
        saving, bound = _true_of(rule, truth, dialect) if (least + most) / 2 >= MIN_CLAIM else (None, 1.0)
        found.append(Claim(rule, least, most, saving, bound))
    return found


def _true_of(rule: str, truth: Truth, dialect: Dialect) -> tuple[float | None, float]:
    """Return the saving that a claim of a rule is about, and the most that it could be."""
    savings = [truth.saving(kind) for kind in truth.without if rule in names_of(kind, dialect)]
    natural = _natural(rule, truth)
    if natural is not None:
        savings.append(natural)
    saving = max(savings, default=None)
    if rule in PLANTED_ONLY:
        return saving if saving is not None else 0.0, 0.0
    if rule == "unfused-optimizer":
        return saving, 0.0
    if rule not in FAMILIES:
        return saving, 1.0 if saving is None else saving
    return saving, truth.bound(FAMILIES[rule])


def _waste_scores(truth: Truth, claims: tuple[Claim, ...], dialect: Dialect) -> list[WasteScore]:
    """Return each planted waste with the claim about it.

    One claim about all of the host's code between operators stands for all wastes that it names.
    """
    found, alike = [], dict[str, list[str]]()
    for kind in truth.without:
        claim = _claim_about(kind, claims, dialect)
        if claim is None:
            found.append(WasteScore(kind, truth.saving(kind), 0.0, 0.0, 0.0))
        elif claim.rule in SILENT and kind not in UNCOMPARED:
            alike.setdefault(claim.rule, []).append(kind)
        else:
            found.append(WasteScore(kind, _of_change(claim, kind, truth), claim.middle, claim.least, claim.most))
    for kinds in alike.values():
        largest = max(kinds, key=truth.saving)
        claim = _claim_about(largest, claims, dialect)
        if claim is not None:
            together = (truth.silence(frozenset(kinds)), truth.silence(frozenset(kinds), environment=1.0))
            saving = min(together, key=lambda share: abs(share - claim.middle))
            found.append(WasteScore(largest, saving, claim.middle, claim.least, claim.most))
    return found


def _claim_about(kind: str, claims: tuple[Claim, ...], dialect: Dialect) -> Claim | None:
    """Return the largest claim whose rule is a right name of a waste."""
    first, *others = names_of(kind, dialect)
    about = [claim for claim in claims if claim.rule == first or (claim.rule in others and claim.rule not in BROAD)]
    return max(about, key=lambda claim: claim.middle, default=None)


def _of_change(claim: Claim, kind: str, truth: Truth) -> float:
    """Return what the change that is claimed does about a waste: pageable batches are also copied ahead."""
    ahead = kind == "pageable-copy" and claim.rule in ("exposed-copy", "pcie-bound")
    return truth.copied_ahead if ahead else truth.saving(kind)


def compared(scores: Sequence[Score]) -> list[WasteScore]:
    """Return the planted wastes whose claims can be compared with the truth."""
    return [waste for one in scores for waste in one.wastes if waste.kind not in UNCOMPARED]

"""Scores as tables, for the terminal and for pages/simulation.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median, quantiles

from simulation.scoring import MIN_CLAIM, Answer, Score, compared
from simulation.wastes import SILENT

__all__ = ["dialect_agreement", "report"]

BINS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.01)


def report(scores: Sequence[Score], seed: int) -> list[str]:
    """Return all tables as lines of Markdown."""
    lines = [f"`evaluation/accuracy --simulated {len(scores)} --seed {seed}`", ""]
    for part in (_summary, _confusion, _limits, _errors, _calibration, _false_alarms):
        lines += [*part(scores), ""]
    return lines[:-1]


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def _summary(scores: Sequence[Score]) -> list[str]:
    wasteful = [s for s in scores if s.best]
    healthy = [s for s in scores if not s.best]
    claims = [c for s in scores for c in s.claims if c.middle >= MIN_CLAIM]
    steps = [abs(s.diagnosed_step_ns / s.step_ns - 1) for s in scores if s.diagnosed_step_ns and s.marked]
    same, asked = dialect_agreement(scores)
    errors = [abs(w.claimed - w.saving) for w in compared(scores)]
    inside = [w for w in compared(scores) if w.claimed]
    held = sum(w.least - 0.01 <= w.saving <= w.most + 0.01 for w in inside)
    rows = [
        ("cause named, where a waste saves 2 %", _share(sum(s.right for s in wasteful), len(wasteful))),
        ("… or a cause that the program has by nature, and that saves as much",
         _share(sum(s.right or s.by_nature for s in wasteful), len(wasteful))),
        ("no false alarm, where no waste saves 2 %", _share(sum(s.right for s in healthy), len(healthy))),
        ("cases with a false alarm", _share(sum(bool(s.false_alarms) for s in scores), len(scores))),
        ("claims of 5 % and more that are false", _share(sum(c.false_alarm for c in claims), len(claims))),
        ("error of a planted waste's saving, percent of the step",
         f"{_spread(errors, 1)}, n = {len(errors)}"),
        ("true saving within the claimed range, ± 1 %, where one is claimed", _share(held, len(inside))),
        ("verdict contradicts what limits the step", _share(sum(s.contradicts for s in scores), len(scores))),
        ("diagnosed step against the true one, where steps are marked",
         _spread(steps, 2)),
        ("same verdict and cause in every dialect", _share(same, asked)),
        ("failed", _share(sum(bool(s.answer.error) for s in scores), len(scores))),
        ("runs that break a check of the simulator", _share(sum(bool(s.broken) for s in scores), len(scores))),
    ]  # fmt: skip
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _spread(shares: Sequence[float], digits: int) -> str:
    if not shares:
        return "none"
    middle, high = 100 * median(shares), 100 * _percentile(shares, 90)
    return f"median {middle:.{digits}f} %, 90th percentile {high:.{digits}f} %"


def error_of_nine_in_ten(scores: Sequence[Score]) -> float:
    """Return the share of the step by which nine in ten claims about planted wastes are wrong at most."""
    return _percentile([abs(waste.claimed - waste.saving) for waste in compared(scores)], 90)


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else max(values, default=0.0)


def _confusion(scores: Sequence[Score]) -> list[str]:
    """Return what was answered for each best waste."""
    table: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        table[one.best or "none"].append(one)
    lines = ["| best waste | cases | right | by nature | dominant cause answered |", "|---|---|---|---|---|"]
    for kind in sorted(table, key=lambda k: -len(table[k])):
        cases = table[kind]
        answers = Counter(one.answer.dominant or one.answer.verdict for one in cases)
        said = ", ".join(f"{name} {count}" for name, count in answers.most_common())
        nature = sum(one.by_nature for one in cases)
        lines.append(f"| {kind} | {len(cases)} | {sum(one.right for one in cases)} | {nature} | {said} |")
    return lines


def _limits(scores: Sequence[Score]) -> list[str]:
    verdicts = sorted({one.answer.verdict for one in scores})
    lines = [f"| what limits the step | {' | '.join(verdicts)} |", f"|---|{'---|' * len(verdicts)}"]
    for limit in ("host", "device", "mixed"):
        counts = Counter(one.answer.verdict for one in scores if one.limit == limit)
        lines.append(f"| {limit} | {' | '.join(str(counts[verdict]) for verdict in verdicts)} |")
    return lines


def _errors(scores: Sequence[Score]) -> list[str]:
    """Return the errors for each kind of waste."""
    table = defaultdict(list)
    for waste in compared(scores):
        table[waste.kind].append(waste)
    lines = [
        "| planted waste | n | mean true saving | mean claim | error: median | 90th percentile |",
        "|---|---|---|---|---|---|",
    ]
    for kind in sorted(table, key=lambda k: -len(table[k])):
        wastes = table[kind]
        errors = [100 * abs(w.claimed - w.saving) for w in wastes]
        true, claimed = (100 * fmean(values) for values in ([w.saving for w in wastes], [w.claimed for w in wastes]))
        spread = f"{median(errors):.1f} | {_percentile(errors, 90):.1f}"
        lines.append(f"| {kind} | {len(wastes)} | {true:.1f} % | {claimed:.1f} % | {spread} |")
    return lines


def _calibration(scores: Sequence[Score]) -> list[str]:
    """Return what is true of the claims of a size."""
    claims = [c for s in scores for c in s.claims if c.saving is not None and c.middle >= MIN_CLAIM]
    lines = ["| claimed | n | mean claim | mean true saving | true saving: quartiles |", "|---|---|---|---|---|"]
    for low, high in pairwise(BINS):
        some = [c for c in claims if low <= c.middle < high]
        if some:
            true = [100 * (c.saving or 0.0) for c in some]
            parts = quantiles(true, n=4, method="inclusive") if len(true) > 1 else true * 3
            spread = f"{parts[0]:.1f} to {parts[2]:.1f} %"
            mean = f"{100 * fmean(c.middle for c in some):.1f} % | {fmean(true):.1f} %"
            lines.append(f"| {low:.0%} to {min(high, 1):.0%} | {len(some)} | {mean} | {spread} |")
    return lines


def _false_alarms(scores: Sequence[Score]) -> list[str]:
    counts = Counter(claim.rule for one in scores for claim in one.false_alarms)
    if not counts:
        return ["False alarms: none."]
    largest = {rule: max(c.middle for s in scores for c in s.false_alarms if c.rule == rule) for rule in counts}
    lines = ["| false alarms by rule | n | largest claim |", "|---|---|---|"]
    return lines + [f"| {rule} | {count} | {largest[rule]:.0%} |" for rule, count in counts.most_common()]


def dialect_agreement(scores: Sequence[Score]) -> tuple[int, int]:
    """Return how many of the cases that were written in every dialect had one answer, and how many there were."""
    asked = [one for one in scores if one.others]
    return sum(len({_plain(answer) for answer in one.others}) == 1 for one in asked), len(asked)


def _plain(answer: Answer) -> tuple[str, str]:
    """Return an answer with one name for what only stacks can tell apart."""
    silent = (*SILENT, "gc-pause", "off-cpu")
    return answer.verdict, "silence" if answer.dominant in silent else answer.dominant

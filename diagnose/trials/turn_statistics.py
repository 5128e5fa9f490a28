"""What the rounds of a turn-taking trial show: each form's speed-up against the unchanged script, and how sure that is.

In a round every form runs one block, so spells of the machine that are longer than a round cancel in the round's
logarithmic ratios. What other processes took from the thread of a form is counted by the system, and taken off where it
is known to have lengthened the step by as much. Two things remain. Each has a bound, and the interval is the root of
the sum of their squares:

- *Noise of rounds.* A form's ratio while its process lives is the midmean of its rounds: the mean of the middle half,
  with the standard error of Tukey and McLaughlin from the winsorised values (Yuen 1974). A stall of the machine makes a
  few rounds arbitrarily wrong and moves neither; on even rounds it has 84 % of the exactness of the mean, and a median
  64 %. It is taken of the ratio to each unchanged form by itself, so that a stall in one of them spoils no other ratio.
  Neighbouring rounds that resemble each other count as fewer. The bound is the asymptotic confidence sequence of
  Waudby-Smith et al. (2021): it holds at every round at once, so one may look whenever one likes.
- *Instances.* Two processes of one form differ for as long as they live (where memory lies, which kernels autotuning
  chose). Each form therefore runs as several processes, one after the other. The bound is Student's, for the residuals
  of an analysis of variance with an effect of each group of processes and of each form, where all unchanged forms are
  one: two or more of them show at once how far equal processes differ. What the noise of rounds adds to the residuals
  is taken off, since it has its own bound. What is known from other machines counts as
  `PRIOR_FREEDOM` further degrees of freedom unless the residuals show more: two instances alone can by chance show next
  to nothing. Nothing is certain before each form has run as two.

What comes in fewer than a quarter of the blocks (an evaluation every thousand steps) is trimmed away with the stalls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, exp, hypot, inf, log, pi, sin, sqrt, tan
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from diagnose.model.arrays import Floats

Verdict: TypeAlias = Literal["better", "worse", "even", "open"]

TRIMMED = 0.25  # of the rounds at each end
MIN_ROUNDS = 8  # of an instance, before it counts: four are left after trimming
ERROR = 0.05  # of the interval that is shown
ERROR_OF_VERDICT = 0.01  # "better" and "worse": one in a hundred trials of a change that does nothing may be wrong
EVEN = 0.02  # of a step, no difference worth having
BEST_AT = 50  # rounds at which the confidence sequence is narrowest; it is 3 % wider at 20 and at 200
# Between instances of one form: standard deviation of the logarithm of the step, and how much that counts. Pairs of
# processes on two CPU cores differed by 1 to 5 % (shared/prototypes); not yet calibrated on a GPU.
PRIOR_SPREAD = 0.007
PRIOR_FREEDOM = 3
# Share of a step in which its thread sleeps, or helpers of it work: so much of the time for which the thread had no
# core may be hidden behind what it waits for. Below this, half of `EVEN`, that time is taken off.
MAX_APART = 0.01
MIN_INSTANCES = 2  # of both sides: one pair of processes can differ by more than any gain


@dataclass(frozen=True)
class Round:
    """One block of each form that still runs."""

    instance: int  # number of the processes that ran, from 0
    step_ns: dict[int, float]  # mean step of the block, by the number of the form
    own_ns: dict[int, float] = field(default_factory=dict)  # without what others took from its thread
    apart: dict[int, float] = field(default_factory=dict)  # for what share the thread waited for something else


class Estimate(NamedTuple):
    """The step of the unchanged forms over that of one form: 2 is twice as fast."""

    ratio: float
    low: float  # 95 %, at whatever round one looks
    high: float
    surely_low: float  # 99 %
    surely_high: float
    num_rounds: int
    num_instances: int

    @property
    def half_width(self) -> float:
        """Return half the 95 % interval, as a share of the ratio."""
        return (self.high / self.low) ** 0.5 - 1 if 0 < self.low <= self.high < inf else inf

    @property
    def verdict(self) -> Verdict:
        """Return what is certain."""
        return self.impression if self.num_instances >= MIN_INSTANCES else "open"

    @property
    def impression(self) -> Verdict:
        """Return what would be certain if the instances so far were enough."""
        if self.surely_low > 1:
            return "better"
        if self.surely_high < 1:
            return "worse"
        return "even" if 1 / (1 + EVEN) <= self.low <= self.high <= 1 + EVEN else "open"


UNKNOWN = Estimate(1.0, 0.0, inf, 0.0, inf, 0, 0)


def estimate(rounds: Sequence[Round], form: int, unchanged: Sequence[int], num_planned: int) -> Estimate:
    """Return the speed-up of a form, which may be one of the unchanged: it is then set against the others of them.

    Args:
        rounds: All rounds so far, in order.
        form: Its number.
        unchanged: Numbers of the unchanged forms.
        num_planned: Instances that each form is to have, over which the error of the instances' bound is spread.
    """
    others = [number for number in unchanged if number != form]
    if not others:
        return UNKNOWN
    cells = _cells(_own_times(rounds, (form, *others)), others)
    own = [cell for cell in cells if cell.form == form]
    if not own:
        return UNKNOWN
    middle, leverage, spread, freedom = _fit(cells, form, others)
    num_rounds = sum(cell.num_rounds for cell in own)
    rounds_error = sqrt(sum(cell.error**2 for cell in own)) / len(own)

    share = _share_now(len(own), max(num_planned, len(own)))

    def reach(error: float) -> float:
        of_instances = t_quantile(freedom, error * share) * spread * sqrt(leverage)
        return hypot(of_instances, _sequence_factor(num_rounds, error) * rounds_error)

    shown, sure = reach(ERROR), reach(ERROR_OF_VERDICT)
    return Estimate(
        exp(-middle),
        exp(-middle - shown),
        exp(-middle + shown),
        exp(-middle - sure),
        exp(-middle + sure),
        num_rounds,
        len(own),
    )


def instance_ratios(rounds: Sequence[Round], form: int, unchanged: Sequence[int]) -> list[tuple[float, float]]:
    """Return the speed-up of each instance of a form against the others that are unchanged, with its standard error."""
    others = [number for number in unchanged if number != form]
    cells = _cells(_own_times(rounds, (form, *others)), others) if others else []
    return [(exp(-cell.middle), cell.error) for cell in cells if cell.form == form]


def _own_times(rounds: Sequence[Round], compared: Sequence[int]) -> Sequence[Round]:
    """Return rounds without what others took from the threads of the forms, if that is known of all that are compared.

    Other forms of which it is not known are left out of them.
    """
    num_rounds, num_apart = Counter[int](), Counter[int]()
    for each in rounds:
        num_rounds.update(list(each.step_ns))  # counts, not nanoseconds
        num_apart.update(n for n in each.step_ns if each.apart.get(n, 1.0) > MAX_APART)
    known = {number for number, num in num_rounds.items() if num_apart[number] <= TRIMMED * num}
    if not known.issuperset(compared):
        return rounds
    return [Round(each.instance, {n: ns for n, ns in each.own_ns.items() if n in known}) for each in rounds]


class _Cell(NamedTuple):
    """One instance of one form."""

    instance: int
    form: int
    middle: float  # of the rounds' log of its step over each of the reference's
    error: float  # standard, of that
    num_rounds: int


def _cells(rounds: Sequence[Round], reference: Sequence[int]) -> list[_Cell]:
    logs: dict[tuple[int, int], list[list[float]]] = {}
    for each in rounds:
        if not all(number in each.step_ns for number in reference):
            continue
        base = [log(each.step_ns[number]) for number in reference]
        for form, step_ns in each.step_ns.items():
            logs.setdefault((each.instance, form), []).append([log(step_ns) - one for one in base])
    return [
        _Cell(instance, form, *_trimmed_mean(np.asarray(values)), len(values))
        for (instance, form), values in logs.items()
        if len(values) >= MIN_ROUNDS
    ]


def _trimmed_mean(values: Floats) -> tuple[float, float]:
    """Return the mean of the trimmed means of the columns, each row of which is a round, and its standard error."""
    num = len(values)
    cut = int(TRIMMED * num)
    ordered = np.sort(values, axis=0)
    winsorised = np.clip(values, ordered[cut], ordered[num - 1 - cut]).mean(axis=1)
    left = num - 2 * cut
    squares = float(np.sum((winsorised - winsorised.mean()) ** 2))
    error = sqrt(squares / (left * (left - 1)))
    return float(ordered[cut : num - cut].mean()), error * _dependence(winsorised)


def _dependence(values: Floats) -> float:
    """Return by what factor the error grows since neighbours are alike: that of a process of first order."""
    apart = values - values.mean()
    squares = float(apart @ apart)
    alike = float(apart[1:] @ apart[:-1]) / squares if squares > 0 else 0.0
    alike = min(max(alike, 0.0), 0.9)
    return sqrt((1 + alike) / (1 - alike))


def _fit(cells: Sequence[_Cell], form: int, unchanged: Sequence[int]) -> tuple[float, float, float, int]:
    """Return a form's effect, the factor of its variance, the spread of instances and its degrees of freedom."""
    instances = sorted({cell.instance for cell in cells})
    groups = sorted({cell.form for cell in cells} - set(unchanged))
    columns = np.zeros((len(cells), len(instances) + len(groups)))
    for row, cell in enumerate(cells):
        columns[row, instances.index(cell.instance)] = 1
        if cell.form in groups:
            columns[row, len(instances) + groups.index(cell.form)] = 1
    middles = np.array([cell.middle for cell in cells])
    inverse = np.linalg.pinv(columns.T @ columns)
    effects = inverse @ columns.T @ middles
    residual = middles - columns @ effects
    freedom = max(0, len(cells) - int(np.linalg.matrix_rank(columns)))
    left = 1 - np.einsum("ij,jk,ik->i", columns, inverse, columns)  # of each cell's variance, in its residual
    of_rounds = left @ np.array([cell.error**2 for cell in cells])
    squares = max(float(residual @ residual - of_rounds), 0.0)
    if not freedom or squares <= freedom * PRIOR_SPREAD**2:
        freedom, squares = freedom + PRIOR_FREEDOM, squares + PRIOR_FREEDOM * PRIOR_SPREAD**2
    at = len(instances) + groups.index(form)
    return float(effects[at]), float(inverse[at, at]), sqrt(squares / freedom), freedom


def _share_now(num: int, planned: int) -> float:
    """Return the share of the error that is spent at an instance: most at the last, the sum over all is 1."""
    return num**2 / sum(i**2 for i in range(1, planned + 1))


def _sequence_factor(num: int, error: float) -> float:
    """Return how many standard errors bound the mean of ``num`` values, at every ``num`` at once."""
    scale = num * (-2 * log(error) + log(-2 * log(error)) + 1) / BEST_AT
    return sqrt((scale + 1) / scale * 2 * log(sqrt(scale + 1) / error))


def t_quantile(freedom: int, error: float) -> float:
    """Return what Student's t exceeds in size with the probability ``error`` (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - _within(middle, freedom) > error else (low, middle)
    return sqrt(freedom) * tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability that |t| is below √freedom · tan(angle)."""
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * i / (i + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

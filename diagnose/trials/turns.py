"""Lets forms of a script take turns: rounds of one block each in random order, until what is asked is certain.

What a form is stays with its caller: the scheduler asks it for blocks of steps, and for new processes.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median
from typing import NamedTuple, Protocol

from diagnose.errors import CaptureError
from diagnose.trials.measuring import TrialResult
from diagnose.trials.turn_statistics import MAX_APART, MIN_INSTANCES, MIN_ROUNDS, TRIMMED, Estimate, Round, estimate

MAX_STEPS = 2_000  # the latest of a form, which show whether they are alike
NARROW = 0.03  # half of a gain's interval: what is predicted is no more exact


class ScriptEndedError(CaptureError):
    """A form has trained to the end of its script: another process of it can go on."""


class Block(NamedTuple):
    """What a form did in its turn."""

    step_ns: Sequence[float]
    queued_ns: Sequence[float] = ()  # of each step: for so long its thread was ready and others had the cores
    apart: float = 1.0  # share in which that thread slept or others of the form worked, see `diagnose.trials.own_time`

    @property
    def own_ns(self) -> Sequence[float]:
        """Return the steps without the time that others took from their thread."""
        if len(self.queued_ns) != len(self.step_ns):
            return self.step_ns
        return [max(ns - queued, 1.0) for ns, queued in zip(self.step_ns, self.queued_ns, strict=True)]


class Form(Protocol):
    """One form of the script: a process that is alive and waits."""

    def block(self, seconds: float) -> Block:
        """Run for about some seconds, alone on the machine.

        Raises:
            ScriptEndedError: the script has come to its end.
            CaptureError: it has failed; the sentence says why.
        """


class LiveForm(Form, Protocol):
    """A process of a form; what starts it raises CaptureError."""

    ends: float  # by the monotonic clock: it is waited for no longer
    device_free: int | None  # bytes when it was ready; None without a device

    def start(self) -> None:
        """Start it."""

    def wait_for_import(self) -> None:
        """Wait until torch is imported."""

    def get_ready(self) -> None:
        """Let it warm up."""

    def host_bytes(self) -> int:
        """Return the largest memory that it had to itself."""

    def failed(self, why: str) -> TrialResult:
        """End it after a failure; return the sentence about that as a result."""

    def stop(self) -> None:
        """Ask the script to end."""

    def end(self) -> TrialResult:
        """Wait until it has ended, kill what is left, and return what it measured."""

    def kill(self) -> None:
        """Kill it, whatever it does."""


@dataclass(frozen=True)
class TurnPlan:
    """How long is measured, and how."""

    seconds: float = 45.0  # of rounds; starting processes is not counted
    block_s: float = 0.04  # long against a switch of processes, short against the spells of a machine
    long_block_s: float = 0.15  # where steps differ, or something else than their thread works for them
    instances: int = 2  # processes of each form, one after the other
    rounds_per_look: int = 4
    until_certain: bool = True  # else until the time is over, with every form to the end
    seed: int = 0  # of the order
    seen: Callable[[TurnResult], None] = lambda _found: None  # called after every look
    ends: float = inf  # by the clock: no round begins later


class Look(NamedTuple):
    """What was known at a time."""

    seconds: float  # of rounds
    estimates: Mapping[int, Estimate]  # by number of the form


@dataclass
class TurnResult:
    """What was measured."""

    rounds: list[Round] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    dropped: dict[int, float] = field(default_factory=dict)  # form -> after how many seconds nothing more was to gain
    failed: dict[int, str] = field(default_factory=dict)  # form -> why it ended
    num_open: int = 0  # candidates that are neither certain nor dropped nor failed
    seconds: float = 0.0  # of rounds
    num_instances: int = 0
    disturbed: bool = False  # the unchanged forms differ for certain: nothing here can be relied on

    @property
    def estimates(self) -> Mapping[int, Estimate]:
        """Return what is known now; of a form that was dropped, what was known of it and of all rounds since."""
        return self.looks[-1].estimates if self.looks else {}


def take_turns(
    forms: Sequence[Form],
    unchanged: Sequence[int],
    plan: TurnPlan,
    renew: Callable[[Sequence[int]], Mapping[int, str]],
    clock: Callable[[], float] = time.monotonic,
) -> TurnResult:
    """Measure forms against the unchanged ones until every candidate is certain, or the time is over.

    A candidate is certain once it is faster, slower, or within 2 %. One that is certain and not faster, or whose gain
    is known to within 3 %, is dropped, and the rest gets its time. Where the script of one form ends, all get new
    processes.

    Args:
        forms: All of them.
        unchanged: Which of them are the script as it is, at least one; from two on the others control the first.
        plan: How long, and how.
        renew: Starts new processes of some forms in place of those that are there; called before the first round too.
            Returns why, of those where that failed.
        clock: Seconds.
    """
    order, found, steps = random.Random(plan.seed), TurnResult(), _Steps(plan)
    running, renewed_at = list(range(len(forms))), 0.0
    while found.seconds < plan.seconds and clock() < plan.ends and any(number in running for number in unchanged):
        if found.seconds >= renewed_at:
            # In random order: the first to start was 2 % slower in seven of seven instances, perhaps for its core.
            found.failed |= renew(order.sample(running, len(running)))
            found.num_instances += 1
            renewed_at = plan.seconds * found.num_instances / plan.instances
            running = [number for number in running if number not in found.failed]
            continue
        began = clock()
        try:
            _round(forms, running, steps, order, found)
        except ScriptEndedError as ended:
            renewed_at = found.seconds
            if sum(each.instance == found.num_instances - 1 for each in found.rounds) < MIN_ROUNDS:
                found.failed |= dict.fromkeys(running, f"{ended} It must train on for longer to take turns.")
        found.seconds += max(clock() - began, 1e-9)
        running = [number for number in running if number not in found.failed]
        if len(found.rounds) % plan.rounds_per_look:
            continue
        steps.look()
        _look(found, len(forms), unchanged, plan.instances)
        found.num_open = sum(found.estimates[n].verdict == "open" for n in running if n not in unchanged)
        plan.seen(found)
        if plan.until_certain:
            if _is_over(found, running, unchanged):
                break
            if found.num_instances < MIN_INSTANCES and _seems_over(found, running, unchanged):
                renewed_at = found.seconds
    _look(found, len(forms), unchanged, plan.instances)
    found.disturbed = any(found.estimates[number].verdict in ("better", "worse") for number in unchanged)
    return found


class _Steps:
    """The steps of each form, which show how long its blocks have to be."""

    def __init__(self, plan: TurnPlan) -> None:
        self._plan, self._own_ns, self._even = plan, dict[int, deque[float]](), set[int]()

    def add(self, number: int, block: Block) -> None:
        if block.apart <= MAX_APART:
            self._own_ns.setdefault(number, deque(maxlen=MAX_STEPS)).extend(block.own_ns)

    def look(self) -> None:
        """Find the forms whose steps are alike.

        Long steps that come in a quarter of the long blocks count in the mean of these: short blocks would lose them.
        """
        self._even = {number for number, own in self._own_ns.items() if self._is_even(own)}

    def _is_even(self, own: Collection[float]) -> bool:
        usual_ns = median(own or [inf])
        num_in_block = self._plan.long_block_s * 1e9 / usual_ns
        return num_in_block * max(sum(ns > 2 * usual_ns for ns in own), 1) < TRIMMED * len(own)

    def block_s(self, number: int) -> float:
        """Return how long the next block of a form is."""
        return self._plan.block_s if number in self._even else self._plan.long_block_s


def _round(
    forms: Sequence[Form], running: Sequence[int], steps: _Steps, order: random.Random, found: TurnResult
) -> None:
    each = Round(found.num_instances - 1, {}, {}, {})
    for number in order.sample(running, len(running)):
        try:
            block = forms[number].block(steps.block_s(number))
        except ScriptEndedError:
            raise
        except CaptureError as error:
            found.failed[number] = str(error)
            continue
        steps.add(number, block)
        each.step_ns[number], each.own_ns[number] = fmean(block.step_ns), fmean(block.own_ns)
        each.apart[number] = block.apart
    found.rounds.append(each)


def _look(found: TurnResult, num_forms: int, unchanged: Sequence[int], num_planned: int) -> None:
    estimates = {number: estimate(found.rounds, number, unchanged, num_planned) for number in range(num_forms)}
    found.looks.append(Look(found.seconds, estimates))


def _is_over(found: TurnResult, running: list[int], unchanged: Sequence[int]) -> bool:
    """Drop the candidates of which enough is known; return whether no other one is open."""
    estimates = found.estimates
    for number in [number for number in running if number not in unchanged]:
        own = estimates[number]
        if own.verdict in ("worse", "even") or (own.verdict == "better" and own.half_width <= NARROW):
            running.remove(number)
            found.dropped[number] = found.seconds
    return all(number in unchanged for number in running)


def _seems_over(found: TurnResult, running: Sequence[int], unchanged: Sequence[int]) -> bool:
    """Return whether further processes are all that is missing."""
    return all(found.estimates[number].impression != "open" for number in running if number not in unchanged)

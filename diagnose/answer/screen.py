"""The first screen: the answer, the step now and then, and the changes that lead there. Reports only format it."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from diagnose.answer import FLOOR, worth_share
from diagnose.answer.cards import (
    MIN_FACTOR,
    Card,
    Prediction,
    cards,
    late_rank,
    offered,
    possible_step,
    predictions,
    took_longer,
)
from diagnose.model.diagnosis import Diagnosis, Finding, IgnoredFinding, PlainSteps, Prescription, Where
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import LATE_RANKS, OUTSIDE, UNEXPLAINED_HOST, WORK
from diagnose.model.words import Count, Words, english
from diagnose.text.numbers import duration, lower_first, percent, upper_first
from diagnose.text.plain_text import one_line

MIN_OVERHEAD = 0.2  # of the step: recording that costs more is stated next to the answer
MAX_OVERHEAD = 1.0  # recording that takes over half of the recorded step: no possible step is shown
# Of the recorded step: what recording takes where no steps without the profiler show it, or waiting for a core. Of
# nine scripts with known wastes six were answered otherwise then.
MAX_ESTIMATE = 0.5
OVERLOADED = 0.2  # of the watched time, in which training waited for a core
MAX_WORDS = 16  # of a headline, which is read at a glance
MOSTLY = 0.5  # of the step: what operators compute, or what lies between them, which no rule found avoidable
SMALL = 1 - 1 / MIN_FACTOR  # of the step
PEAK_RATES = "peak rates of the device"
ALL_RANKS = "diagnose analyze FOLDER"

Tone: TypeAlias = Literal["bad", "warn", "good", "info"]

_PILLS: Mapping[str, tuple[str, str, Tone]] = {
    "cpu-bound": ("CPU-bound", "the CPU launches work more slowly than the GPU runs it", "bad"),
    "gaps": ("GPU stalls", "the CPU runs ahead of the GPU except for a few long gaps", "bad"),
    "kernel-bound": ("GPU-bound", "the queue is full: the GPU's own work takes the time", "warn"),
    "run": ("Run stalls", "most of the run's time is not in its usual steps", "bad"),
    "unknown": ("No diagnosis", "the recording cannot carry one", "warn"),
    "no records": ("No GPU records", "the GPU worked, but the recording has none of it", "info"),
    "no-gpu": ("CPU only", "no GPU in this recording", "info"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The first screen; sentences are templates with their values."""

    pill: Words
    meaning: Words  # of the pill, a few words
    tone: Tone
    headline: Words
    now_ns: float
    record_again: Words | None  # why, None for a recording that can be relied on
    cautions: tuple[Words, ...]  # about the numbers
    is_limited: bool = False  # something keeps the recording from showing the step after changes
    refuted: frozenset[str] = frozenset()  # ids of changes that made the step longer
    command: str = ""  # that records again
    cards: tuple[Card, ...] = ()
    after: Prediction | None = None  # the step after exactly the cards; None if nothing is predicted
    num_changes: int = 0  # that are offered in all, those of the cards among them
    is_measured: bool = False  # ``after`` was proven by running the script, not predicted
    checked: Words | None = None  # what was looked for, if little or nothing was found
    to_try: Words | None = None  # what no recording judges and a trial may
    try_command: str = ""
    parts: tuple[tuple[str, float], ...] = ()  # of the bar of the step now: names and shares of the step
    view: Words | None = None  # whose step and changes these are, if there are several ranks
    run_share: float | None = None  # of the run that the finding which answers takes outside the usual step
    no_change: Words | None = None  # that the finding that answers has no card, and why
    measure_own: str = ""  # the command that measures the author's edit, where a card's change is made by hand
    next_command: str = ""  # that shows more of that finding, "" where no other recording does
    each: Mapping[str, Prediction] = field(default_factory=dict)  # by id: what each change is predicted to do

    @property
    def shows_savings(self) -> bool:
        """Return whether the recording carries a prediction of what changes do together."""
        return self.record_again is None and not self.is_limited

    @property
    def warns_first(self) -> bool:
        """Return whether what to do about the recording comes before the changes."""
        return self.record_again is None and self.is_limited

    @property
    def factor(self) -> tuple[float, float, float] | None:
        """Return how many times faster the step becomes: least, predicted, most (infinity if nothing known limits it).

        None for less than a tenth, which is no gain worth a number.
        """
        a = self.after
        if a is None or a.after_ns <= 0 or self.now_ns < MIN_FACTOR * a.after_ns:
            return None
        middle, high = self.now_ns / a.after_ns, self.now_ns / a.low_ns if a.low_ns > 0 else math.inf
        # Of the predicted factor: an end beyond it says no more than that nothing known limits it.
        return self.now_ns / a.high_ns, middle, high if high <= 3.0 * middle else math.inf


def answer(d: Diagnosis) -> Answer:
    """Return the first screen of a diagnosis; of a recording that carries no answer, why and how to record again."""
    limited, why, refuted = limit(d), record_again(d), took_longer(d)
    if why is not None:
        first = _headline_of_useless(why)
        pill, meaning, tone = _PILLS["unknown"]
        said = tuple(_cautions_of_useless(d))
        is_limited, again = limited is not None, _command(d)
        return Answer(Words(pill), Words(meaning), tone, first, d.step_ns, why, said, is_limited, refuted, again)
    # Whether the recording shows what a change saves, and not only at most how much.
    states_savings = limited is None and _estimated(d) < MIN_OVERHEAD
    each = predictions(d, is_sure=states_savings)
    shown = cards(d, each)
    proven = _proven(d)
    after, num = proven or possible_step(d, shown)
    pill, meaning, tone = _pill(d)
    to_try, try_command = _to_try(d, each)
    no_change, next_command = _no_card(d, shown)
    return Answer(
        pill=Words(pill),
        meaning=Words(meaning),
        tone=tone,
        headline=_headline(d, limited, has_trial=to_try is not None),
        now_ns=d.step_ns,
        record_again=None,
        cautions=tuple(_cautions(d, asks_for_ranks=next_command == ALL_RANKS)),
        is_limited=limited is not None,
        refuted=refuted,
        cards=shown,
        after=after if proven or limited is None else None,
        num_changes=num,
        is_measured=proven is not None,
        checked=_checked(d) if d.dominant is None else None,
        to_try=to_try,
        try_command=try_command,
        parts=_parts(d),
        view=_view(d),
        run_share=_run_share(d),
        no_change=no_change,
        next_command=next_command,
        measure_own=_measure_own(d, shown),
        each=each,
    )


def with_words(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the headline, the summary and the changes of its first screen."""
    a = answer(d)
    lines = [f"{english(a.pill)}: {english(a.meaning)}", english(a.headline)]
    for card in a.cards[:1]:
        saves = ""
        if (p := card.prediction) is not None:  # in the words of its card
            saves = f" (saves {duration(p.saves_ns) if p.is_promise else f'up to {duration(p.most_ns)}'})"
        lines.append(f"First change: {card.prescription.title}{saves}")
    shown = tuple(card.prescription.id for card in a.cards)
    return replace(d, headline=english(a.headline), summary=tuple(lines), shown=shown)


def _first(*choices: tuple[object, Words]) -> Words:
    """Return the words of the first choice that holds."""
    return next(words for holds, words in choices if holds)


def _answering(d: Diagnosis) -> Finding | None:
    return next((f for f in d.findings if f.rule == d.dominant), None)


def _line(where: Where) -> str:
    return f"{one_line((where.file or '').rpartition('/')[2])}:{where.line}"


# What a recording cannot carry.


def record_again(d: Diagnosis) -> Words | None:
    """Return why the recording cannot carry an answer, None if it can."""
    if d.record_again:
        return Words(d.record_again)
    if d.dominant is None and d.cpu_wait >= MAX_ESTIMATE:  # that nothing was found says nothing then
        return Words("The CPU was overloaded while this was recorded")
    change = next(iter(d.prescriptions), None)
    if change is None or not change.records_again:
        return None
    of_finding = (
        f.title.partition(":")[0] for f in d.findings[:1] if f.rule == change.rule and not change.records_more
    )
    return Words(next(of_finding, "Too little of the device's work is in this recording"))


def _is_one_rank(d: Diagnosis) -> bool:
    """Return whether this is one rank of several, and the traces of the others are not at hand."""
    return d.source.world_size > 1 and len(d.ranks) < 2


def limit(d: Diagnosis) -> Words | None:
    """Return what keeps the recording from showing what a change gives to the step, None if nothing does.

    The answer is led by it, and no possible step is shown.
    """
    if _is_one_rank(d):
        return Words("On this rank (1 of {num})", {"num": d.source.world_size})
    if d.source.accelerator:
        return Words("No {device} tasks recorded", {"device": d.source.accelerator})
    is_uncertain = (d.profiler_overhead or 0.0) >= MAX_OVERHEAD or max(_estimated(d), d.cpu_wait) >= MAX_ESTIMATE
    return Words("Uncertain") if is_uncertain else None


def _estimated(d: Diagnosis) -> float:
    """Return the share of the step that recording takes at most; a full device hides it."""
    return 0.0 if d.verdict == "kernel-bound" else d.recording_estimate


def _command(d: Diagnosis) -> str:
    """Return the command that records again."""
    again = f"diagnose trace --quick {d.source.command or 'train.py'}"
    for p in d.prescriptions[:1]:
        if p.records_again and p.after:
            again = one_line(p.after.splitlines()[0].partition("#")[0].strip())
    of_all = d.source.world_size > 1 and again.startswith("diagnose ")
    return f"torchrun --nproc-per-node gpu -m {again}" if of_all else again


def _cautions(d: Diagnosis, *, asks_for_ranks: bool) -> Iterator[Words]:
    """Yield what limits the numbers of the first screen, one sentence each, unless the screen asks for the same."""
    yield from _left_out(d.ignored)
    for f in d.findings:
        if f.is_stated and f.rule != d.dominant:
            line = next((_line(w) for w in f.where if w.file and w.line), f.rule)
            words = "{title} ({line}). What that costs is not known before a change is tried."
            yield Words(words, {"title": Words(one_line(f.title)), "line": line})
    yield from _of_recording(d)
    yield from _unstable(d.plain_steps, d.step_ns)
    yield from _off_trial(d)
    yield from _overloaded(d)
    if _is_one_rank(d) and not asks_for_ranks:
        words = (
            "Only 1 of {num} ranks, and another may limit the step. First analyze the traces of all ranks together: "
            "diagnose analyze FOLDER"
        )
        yield Words(words, {"num": d.source.world_size})
    if _begins_late(d):
        words = "The cause of rank {num}'s late start is outside the {steps}. Record more steps on all ranks."
        num = len(d.job.steps) if d.job is not None else 0
        steps = Words("recorded step") if num == 1 else Count(num, "recorded step")
        yield Words(words, {"num": late_rank(d), "steps": steps})
    first = _answering(d)
    if first is not None and first.doubt:
        yield Words("Low confidence: {doubt}.", {"doubt": Words(first.doubt)})


def _cautions_of_useless(d: Diagnosis) -> Iterator[Words]:
    """Yield the same of a recording that carries no answer."""
    yield from _left_out(d.ignored)
    if d.cpu_wait >= MAX_ESTIMATE:
        words = "Training waited for a core {share} of the time. Record on an idle machine{threads}."
        yield Words(words, {"share": percent(d.cpu_wait, 0), "threads": _fewer_threads(d)})
    else:
        yield from _unstable(d.plain_steps, d.step_ns)
    if _is_one_rank(d):
        yield Words("Only 1 of {num} ranks: record all of them.", {"num": d.source.world_size})


def _overloaded(d: Diagnosis) -> Iterator[Words]:
    if d.cpu_wait >= OVERLOADED:
        words = "CPU overloaded: training waited for a core {share} of the time, which all times and savings include."
        if d.cpu_wait >= MAX_ESTIMATE:
            words = (
                "CPU overloaded: training waited for a core {share} of the time, so savings are upper bounds. First "
                "record again on an idle machine{threads}."
            )
        yield Words(words, {"share": percent(d.cpu_wait, 0), "threads": _fewer_threads(d)})


def _fewer_threads(d: Diagnosis) -> Words | str:
    """Return what else gives training a core: operators wait for all of their threads."""
    threads = d.source.setup.get("num_threads")
    return Words(", or with OMP_NUM_THREADS=1") if isinstance(threads, int) and threads > 1 else ""


def _of_recording(d: Diagnosis) -> Iterator[Words]:
    """State what recording cost, if it was much: the numbers are without it as far as it is known."""
    is_stable = d.plain_steps is None or d.plain_steps.agree  # else the difference may be the machine's
    overhead, estimate = d.profiler_overhead or 0.0, _estimated(d)
    costs = {"step": duration(d.step_ns), "added": duration(max(d.recorded_step_ns - d.step_ns, 0.0))}
    share = {"share": percent(estimate, 0)}
    if overhead >= MAX_OVERHEAD:
        words = "Recording added {added} to a step of {step}. Savings are uncertain, so no predicted step is shown."
        yield Words(words, costs)
    elif overhead >= MIN_OVERHEAD and is_stable:
        words = "Recording added {added} per step, which all numbers leave out."
        yield Words(words, costs)
    elif estimate >= MIN_OVERHEAD and d.source.found_steps_by == "none":
        yield Words("Up to {share} of the CPU's time is the profiler's own: savings are upper bounds.", share)
    elif estimate >= MAX_ESTIMATE:
        words = (
            "Up to {share} of the step is the profiler's own CPU time, so no predicted step is shown. "
            "diagnose trace also times steps without the profiler."
        )
        yield Words(words, share)
    elif estimate >= MIN_OVERHEAD:
        yield Words("Up to {share} of the step is the profiler's own CPU time: savings are upper bounds.", share)


def _unstable(p: PlainSteps | None, step_ns: float) -> Iterator[Words]:
    """State that steps without the profiler differ before and after the recorded ones."""
    if p is None or p.agree:
        return
    each = [ns for ns in (p.before_ns, p.recorded_ns, p.after_ns, step_ns) if ns]
    words = "Unstable timing: steps took {low} to {high} within this run. Record again on an idle machine."
    yield Words(words, {"low": duration(min(each)), "high": duration(max(each))})


def _off_trial(d: Diagnosis) -> Iterator[Words]:
    """State that trials without a change take clearly more or less than the reported step, where they do."""
    runs = [t.steps_ms[0] for t in d.trials if t.steps_ms is not None and t.kind != "without"]
    trial_ns = 1e6 * statistics.median(runs or [d.step_ns / 1e6])
    # Of a trial's step without the change, which nothing records; scripts on busy machines lie at 0.3.
    if max(trial_ns, d.step_ns) > 1.5 * min(trial_ns, d.step_ns):
        words = (
            "Trials without a change took {trial} per step, the recorded steps {step}. Measured speed-ups are relative "
            "to the trials; predicted times refer to the recorded steps."
        )
        yield Words(words, {"trial": duration(trial_ns), "step": duration(d.step_ns)})


def _left_out(ignored: tuple[IgnoredFinding, ...]) -> Iterator[Words]:
    """State how many findings were left out, which, and why."""
    if not ignored:
        return
    values: dict[str, Words] = {}
    for i, one in enumerate(ignored):
        by = Words("by an option or setting")
        if one.by == "comment":
            by = Words("by the comment at {line}", {"line": _line(one.finding.where[0])})
        words = {"rule": one.finding.rule, "time": duration(one.finding.lost_ns), "by": by}
        values[f"one{i}"] = Words("{rule} ({time} per step, {by})", words)
    joined = Words(", ".join(f"{{{name}}}" for name in values), values)
    yield Words(
        "Left out as asked: {findings}: {listed}.", {"findings": Count(len(ignored), "finding"), "listed": joined}
    )


# The headline: the first finding in at most sixteen words, or how little there is to gain.


def _headline_of_useless(why: Words) -> Words:
    text = lower_first(re.split("[:：]", english(why).rstrip(".。"), maxsplit=1)[0])
    return _fitted(Words("Record again first: {why}"), "why", text)


def _headline(d: Diagnosis, limited: Words | None, *, has_trial: bool) -> Words:
    """Return the answer.

    Args:
        d: the diagnosis.
        limited: what keeps the recording from showing the possible step, which leads the answer; None if nothing does.
        has_trial: whether a trial is offered of what no recording judges.
    """
    finding = _answering(d)
    if finding is None:
        if d.source.accelerator:
            return Words(
                "No {device} tasks are recorded, and nothing was found on the CPU", {"device": d.source.accelerator}
            )
        return _little(d, limited, has_trial=has_trial)
    j = d.job
    if j is not None and _begins_late(d):
        values = {"num": j.begins_late, "time": duration(j.begins_late_ns)}
        return Words("The ranks wait for rank {num}, which begins its step {time} late", values)
    title, shares = finding.title.strip().rstrip(".。"), _shares(d, finding)
    lead = Words("{limit}: {what}", {"limit": limited}) if limited is not None else None
    if lead is None and shares and finding.worth_ns < SMALL * d.step_ns and finding.share is None:
        lead = Words("Small gains only: {what}")
    if j is not None and j.late_ranks and j.cause == finding.rule:  # the late rank's own finding, which has no rank
        *others, last = map(str, j.late_ranks)
        lead = _first(
            (len(others) > 2, Words("{ranks} are late: {what}", {"ranks": Count(len(others) + 1, "rank")})),
            (others, Words("Ranks {others} and {num} are late: {what}", {"others": ", ".join(others), "num": last})),
            (True, Words("Rank {num} is late: {what}", {"num": last})),
        )
    if lead is not None:
        return _fitted(lead, "what", lower_first(title), shares)
    return _fitted(Words("{what}"), "what", upper_first(title), shares)


def _begins_late(d: Diagnosis) -> bool:
    """Return whether the ranks wait for one that begins its step late, and no rank is slower than the others."""
    return d.dominant == LATE_RANKS and d.job is not None and d.job.begins_late is not None and not d.job.late_ranks


def _little(d: Diagnosis, limited: Words | None, *, has_trial: bool) -> Words:
    """Return how little there is to gain or what keeps the recording from showing it, with the parts of the step."""
    if limited is not None:
        return _of_step(d, limited, has_trial=has_trial)
    found = bool(d.findings)
    start = _first(
        (d.ignored and found, Words("Little else to gain")),
        (d.ignored, Words("Nothing else to fix")),
        (has_trial and found, Words("Little waste found")),
        (has_trial, Words("No waste found")),
        (found or d.not_checked, Words("Little to gain")),
        (True, Words("Nothing to fix")),
    )
    lacking = [Words(name) for name in _lacking(d)[:2]]
    starts = [_found_without(d, lacking[:num]) for num in range(len(lacking), 0, -1)] or [start]
    several = [_of_step(d, each, has_trial=has_trial) for each in starts]
    return next((words for words in several if len(english(words).split()) <= MAX_WORDS), several[-1])


def _lacking(d: Diagnosis) -> list[str]:
    """Return the records that another recording would have; the peak rates of a device are no record."""
    return [name for name in d.unseen if name != PEAK_RATES]


def _found_without(d: Diagnosis, names: list[Words]) -> Words:
    """Return that nothing or little was found, and which records are missing that may hide an answer."""
    values = {"records": names[0], "last": names[-1]}
    if len(names) == 1:
        words = "Little found without {records}" if d.findings else "Nothing found without {records}"
    else:
        words = "Nothing found without {records} and {last}"
        words = "Little found without {records} and {last}" if d.findings else words
    return Words(words, values)


def _of_step(d: Diagnosis, start: Words, *, has_trial: bool) -> Words:
    """Return what the step consists of, after a start; a low MFU is only named with what may raise it."""
    q, step = d.queue, duration(d.step_ns)
    if q is None:
        return _of_host_step(d, start)
    whole = Words("each {step} step", {"step": step})
    if d.source.found_steps_by == "none":
        whole = Words("the {step} recording", {"step": step})
    mfu = percent(d.flops.share, 0) if d.flops is not None and has_trial else ""
    busy = {"start": start, "share": percent(q.busy_share), "whole": whole, "mfu": mfu}
    idle = {"start": start, "share": percent(q.idle_share), "whole": whole}
    is_full = d.verdict == "kernel-bound" and q.idle_share < SMALL
    return _first(
        (is_full and mfu, Words("{start}: the GPU is busy {share} of {whole}, MFU {mfu}", busy)),
        (is_full, Words("{start}: the GPU is busy {share} of {whole}", busy)),
        (d.ignored, Words("{start}: the GPU idles {share} of {whole}, no more avoidable", idle)),
        (True, Words("{start}: the GPU idles {share} of {whole}, none avoidable", idle)),
    )


def _of_host_step(d: Diagnosis, start: Words) -> Words:
    """Return the same without a device: whether results are needed no trace shows."""
    step = duration(d.step_ns)
    cause = next((c for c in (WORK, OUTSIDE, UNEXPLAINED_HOST) if d.host_by_cause.get(c, 0.0) >= MOSTLY), "")
    if d.ignored or not cause:
        values = {"start": start, "step": step}
        return _first(
            (d.findings, Words("{start}: small savings only in the {step} step", values)),
            (d.ignored, Words("{start}: no other rule found avoidable time in the {step} step", values)),
            (True, Words("{start}: no rule found avoidable time in the {step} step", values)),
        )
    if not d.unseen and limit(d) is None:
        start = Words("Little found") if d.findings else Words("Nothing found")
    values = {"start": start, "step": step, "share": percent(d.host_by_cause[cause], 0)}
    return _first(
        (
            cause == UNEXPLAINED_HOST,
            Words("{start}: the recording shows no cause for {share} of the {step} step", values),
        ),
        (cause == WORK and d.unseen, Words("{start}: operators take {share} of the {step} step", values)),
        (cause == WORK, Words("{start}: operators take {share} of the {step} step, none of it known waste", values)),
        (d.unseen, Words("{start}: {share} of the {step} step lies between operators", values)),
        (True, Words("{start}: {share} of the {step} step lies between operators, cause not recorded", values)),
    )


def _shares(d: Diagnosis, finding: Finding) -> tuple[Words, ...]:
    """Return in brackets what the step saves without the finding, as in the list of findings; then in fewer words.

    Nothing is returned of a finding without worth.
    """
    if d.step_ns <= 0 or not finding.worth_ns or not math.isfinite(finding.worth_ns):
        return ()
    value = {"share": percent(worth_share(finding, d.step_ns))}
    words = _first(
        (finding.share is not None, Words("costs {share} of the run", value)),
        (d.source.found_steps_by == "none", Words("costs {share} of the recording", value)),
        (True, Words("costs {share} of the step", value)),
    )
    return Words(" ({words})", {"words": words}), Words(" (costs {share})", value), Words(" ({share})", value)


def _fitted(lead: Words, name: str, text: str, shares: tuple[Words, ...] = ()) -> Words:
    """Return the lead with a text and a share in at most sixteen words.

    Where they are more, the share is the one of fewer words, and clauses at the text's end go, then words.
    """
    room = MAX_WORDS - len(english(lead).replace(f"{{{name}}}", "").split())
    share = next((s for s in shares if len((text + english(s)).split()) <= room), (*shares[-1:], Words(""))[0])
    most = room - len(english(share).split())
    while len(text.split()) > most:
        shorter = max((text.rpartition(mark)[0] for mark in (", ", ": ", "; ")), key=len)
        if len(shorter.split()) < 3:
            text = " ".join(text.split()[:most]) + "…"
            break
        text = shorter
    said = Words(lead.template, {**lead.values, name: Words(one_line(text))})
    return Words("{said}{end}", {"said": said, "end": share}) if share.template else said


def _checked(d: Diagnosis) -> Words | None:
    """Return how many rules found everything in order, and what the others lack, None if none was applied."""
    if not d.checked:
        return None
    values: dict[str, object] = {"num": len(d.checked), "found": "", "missing": ""}
    for first in d.findings[:1]:
        if first.worth_ns >= MIN_GAIN_SHARE * d.step_ns > 0:
            share, title = percent(worth_share(first, d.step_ns)), lower_first(one_line(first.title))
            words = " Largest finding: {title} (costs {share})."
            values["found"] = Words(words, {"title": Words(title), "share": share})
    if d.not_checked:
        needed = Counter(name for names in d.not_checked.values() for name in names.split(", "))
        lacking = {f"record{i}": Words(name) for i, (name, _) in enumerate(needed.most_common())}
        listed = Words(", ".join(f"{{{key}}}" for key in lacking), lacking)
        missing = {"num": len(d.not_checked), "listed": listed}
        words = " {num} could not run (missing: {listed})."
        if not d.source.command:  # the trace was written by something else
            words = " {num} more need a recording by diagnose trace: of {listed}."
        values["missing"] = Words(words, missing)
    return Words("{num} checks passed.{missing}{found}", values)


# What stands below the headline.


def _no_card(d: Diagnosis, shown: tuple[Card, ...]) -> tuple[Words | None, str]:
    """Return why no card is for the finding that answers, None if one is or no finding answers.

    With it comes the command that shows more of the finding, "" where none does.
    """
    first = _answering(d)
    if first is None or any(card.prescription.rule == d.dominant for card in shown):
        return None, ""
    mine = {p.id for p in d.prescriptions if p.rule == d.dominant}
    line = next((_line(w) for w in first.where if w.file and w.line), "")
    why = (
        (
            mine & took_longer(d),
            Words("A change that was tried made the step longer; no other is known for it."),
            "",
        ),
        (mine, Words("No change for it is predicted to save 1 % of the step."), ""),
        (
            _is_one_rank(d),
            Words(
                "The cause may be on another rank, so no predicted step is shown. Analyze the traces of all {num} "
                "ranks together:",
                {"num": d.source.world_size},
            ),
            ALL_RANKS,
        ),
        (
            not d.source.names_lines,
            Words("This trace has no Python stacks. To see the line and the change for it, record again with:"),
            "diagnose trace train.py",
        ),
        (
            line,
            Words("No known change fits what takes the time at {line}: make that line cheaper.", {"line": line}),
            "",
        ),
        (True, Words("No change is known for it."), ""),
    )
    return next((words, command) for holds, words, command in why if holds)


def shown_rank(d: Diagnosis) -> int | None:
    """Return the rank that everything but the tables of ranks is about, None where it cannot be told."""
    return next((r.rank for r in d.ranks if r.step_ns == d.step_ns and r.partition == d.partition), None)


def _proven(d: Diagnosis) -> tuple[Prediction, int] | None:
    """Return the step as the best trial measured it, faster for certain and with the same losses; None without one."""
    tried = (t for t in d.trials if t.kind != "without" and t.numerics != "drifted" and not t.failure)
    best = max((t for t in tried if t.interval[0] > 1), key=lambda t: t.speed_up, default=None)
    if best is None:
        return None
    ends = (d.step_ns / best.speed_up, d.step_ns / best.interval[1], d.step_ns / best.interval[0])
    return Prediction(d.step_ns, *ends, is_replayed=True), max(len(best.ids), 1)


def _pill(d: Diagnosis) -> tuple[str, str, Tone]:
    legend = d.legends.get(d.dominant or "")
    if legend is not None and legend.heading:
        return legend.heading, legend.meaning, "bad"
    if _run_share(d) is not None:
        return _PILLS["run"]
    pill, meaning, tone = _PILLS["no records" if "device records" in d.unseen else d.verdict]
    if d.dominant is None:
        tone = "good" if d.verdict == "kernel-bound" or not d.findings else "info"
    return pill, meaning, tone


def _parts(d: Diagnosis) -> tuple[tuple[str, float], ...]:
    """Return what the step consists of: what the GPU does, by families of kernels where it is full, and its idle time.

    Without a device it is what the answer's cause costs and the rest, without an answer what the host does. Of a step
    that is long now and then, all but that is the usual step. The causes of idle time stand elsewhere: a cause takes
    another time than a step without it saves.
    """
    p, rare, first = d.partition, _run_share(d) or 0.0, _answering(d)
    saved = worth_share(first, d.step_ns) if p is None and first is not None and not rare else 0.0
    if first is not None and saved:
        usual, is_sorted = [(_label(d, first.rule), saved), ("rest", 1 - saved)], False
    elif p is None:
        usual, is_sorted = [(_label(d, name), share) for name, share in d.host_by_cause.items()], True
    else:
        families = d.kernel_families if d.verdict == "kernel-bound" or d.dominant is None else {}
        computing = {{"copy": "copy kernels"}.get(name, name): share for name, share in families.items()}
        usual = [(name, share * p.compute) for name, share in (computing or {"computing": 1.0}).items()]
        usual += [("communication not overlapped", p.exposed_communication), ("copies not overlapped", p.exposed_copy)]
        usual.append(("idle", p.idle))
        is_sorted = bool(families)  # more parts than a line names
    if is_sorted:
        usual.sort(key=lambda part: -part[1])
    found = [(_label(d, d.dominant or ""), rare), *((name, share * (1 - rare)) for name, share in usual)]
    return tuple((name, share) for name, share in found if share >= FLOOR)


def _label(d: Diagnosis, cause: str) -> str:
    """Return what the time of a cause is, in words: a finding of the same name may save another time."""
    legend = d.legends.get(cause)
    return legend.label if legend is not None and legend.label else cause


def _run_share(d: Diagnosis) -> float | None:
    """Return the share of the run that the finding which answers takes, if it rests on all steps of the run."""
    finding = _answering(d)
    return finding.share if finding is not None else None


def _measure_own(d: Diagnosis, shown: Sequence[Card]) -> str:
    """Return the command that measures the author's edit of the script, "" where no card needs one."""
    by_hand = (p for p in (card.prescription for card in shown) if p.trial_method == "by hand" and not p.diff)
    command = d.source.command
    if not command or command.startswith("-m ") or all(p.records_again for p in by_hand):
        return ""
    return f"diagnose prove --against EDITED.py {command}"


def _to_try(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[Words | None, str]:
    """Return which changes only a trial shows the effect of, and its command; none if all of them ran."""
    known = {*each, *(name for trial in d.trials for name in trial.ids)}
    ids = [name for name in d.to_try if name not in known]
    if not ids or (d.queue is not None and d.dominant is not None):
        return None, ""
    words = "Faster kernels or settings may exist, which a recording cannot show. To try {changes} and time the step:"
    said, asked = Words(words, {"changes": ", ".join(ids)}), ",".join(ids)
    if not d.source.command and (d.queue is None or d.source.torch):  # a step function that a capture holds
        return said, f'diagnose.prove(make_step, apply="{asked}")'
    return said, f"diagnose prove --apply {asked} {d.source.command or 'train.py'}"


def _view(d: Diagnosis) -> Words | None:
    """Return whose step and changes a report of several ranks shows; of one rank what a step is, where that is odd."""
    if len(d.ranks) < 2:
        # How many steps follow a rollout, None if none do so regularly: a loop's iteration is more than a step.
        found = (f.facts for f in d.findings if f.facts.get("phase") == "rollout" and f.facts.get("regular"))
        period = next((facts.get("period") for facts in found), None)
        if d.source.found_steps_by != "optimizer" or not isinstance(period, int):
            return None
        return Words("A step is one optimizer.step(); {num} of them follow each rollout.", {"num": period})
    shown, num = shown_rank(d), len(d.ranks)
    legend = d.legends.get(d.dominant or "")
    waits_too = d.dominant != LATE_RANKS and legend is not None and bool(legend.heading)
    is_late = shown == late_rank(d) and not waits_too
    values = {"num": shown, "others": num - 1, "ranks": num}
    return _first(
        (
            shown is None,
            Words(
                "Step and changes are those of one of {num} ranks, the one waited for or else the slowest.",
                {"num": num},
            ),
        ),
        (
            is_late and num == 2,
            Words("Step and changes are those of rank {num}, which the other one waits for.", values),
        ),
        (is_late, Words("Step and changes are those of rank {num}, which the other {others} wait for.", values)),
        (True, Words("Step and changes are those of rank {num}, whose step is the longest of {ranks}.", values)),
    )


# The findings of a report in their order, each with the change that it offers and what else is possible.


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding of the list."""

    number: int  # from 1
    finding: Finding
    fix: Prescription | None  # the change that a card shows for it, or that comes first
    alternative: Prescription | None  # the other way that saves most by itself
    refuted: tuple[Prescription, ...]  # changes that made the step longer when they were tried
    also: tuple[str, ...]  # ids of further changes
    saves: Words | None  # what the step saves without it, None where the recording cannot show it
    share: float  # the same of the step, or of the run


def finding_rows(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[FindingRow, ...]:
    """Return a row for each finding, in the order of the findings.

    A recording that cannot carry an answer has neither savings nor changes.
    """
    if record_again(d) is not None:
        return tuple(FindingRow(i, f, None, None, (), (), None, 0.0) for i, f in enumerate(d.findings, 1))
    longer = took_longer(d)
    on_cards = {p.rule: p for p in reversed(offered(d, each))}
    rows = []
    for number, finding in enumerate(d.findings, 1):
        mine = [p for p in d.prescriptions if p.rule == finding.rule]
        also = [p for p in d.also_possible if p.rule == finding.rule]
        kept = [p for p in mine if p.id not in longer]
        fix = on_cards.get(finding.rule) or next(iter(kept), None)
        others = [p for p in kept if p is not fix and p.id in each and not each[p.id].behind]
        # What the step saves without the cause, ns and share: the number that findings are ordered by.
        values = {"time": duration(finding.worth_ns), "share": percent(worth_share(finding, d.step_ns))}
        saves = _first(
            (not finding.worth_ns, Words("no saving known")),
            (d.step_ns <= 0, Words("{time}", values)),
            (finding.share is not None, Words("{time} per step ({share} of the run)", values)),
            (d.source.found_steps_by != "none", Words("{time} ({share} of the step)", values)),
            (True, Words("{time} ({share} of the recording)", values)),
        )
        rows.append(
            FindingRow(
                number,
                finding,
                fix,
                alternative=max(others, key=lambda p: each[p.id].saves_ns, default=None),
                refuted=tuple(p for p in (*mine, *also) if p.id in longer),
                also=tuple(p.id for p in also if p.id not in longer),
                share=worth_share(finding, d.step_ns),
                saves=saves,
            )
        )
    return tuple(rows)

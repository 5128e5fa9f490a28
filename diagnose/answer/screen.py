"""The first screen: the answer, the step now and then, and the changes that lead there. Reports only format it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from diagnose.answer.cards import MIN_FACTOR, Card, Prediction, cards, late_rank, possible_step, predictions
from diagnose.answer.gates import cautions, command, is_one_rank, limit, record_again, states_savings
from diagnose.answer.headline import checked, headline
from diagnose.answer.tried import took_longer
from diagnose.model.diagnosis import Diagnosis, Finding
from diagnose.model.words import Words, english
from diagnose.text.numbers import duration
from diagnose.text.plain_text import one_line

__all__ = ["Answer", "Tone", "answer", "shown_rank", "with_words"]

MIN_PART_SHARE = 0.02  # of the step: less has no name next to its bar
MAX_HIGH = 3.0  # of the predicted factor: an end beyond it says no more than that nothing known limits it

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
    after: Prediction | None  # the step after exactly the cards; None if nothing is predicted
    num_changes: int  # that are offered in all, those of the cards among them
    cards: tuple[Card, ...]
    record_again: Words | None  # why, None for a recording that can be relied on
    command: str  # that records again
    checked: Words | None  # what was looked for, if little or nothing was found
    to_try: Words | None  # what no recording judges and a trial may
    try_command: str
    cautions: tuple[Words, ...]  # about the numbers above
    is_limited: bool = False  # something keeps the recording from showing the step after changes
    is_measured: bool = False  # ``after`` was proven by running the script, not predicted
    parts: tuple[tuple[str, float], ...] = ()  # of the bar of the step now: names and shares of the step
    view: Words | None = None  # whose step and changes these are, if there are several ranks
    run_share: float | None = None  # of the run that the finding which answers takes outside the usual step
    no_change: Words | None = None  # that the finding that answers has no card, and why
    next_command: str = ""  # that shows more of that finding, "" where no other recording does
    refuted: frozenset[str] = frozenset()  # ids of changes that made the step longer
    each: Mapping[str, Prediction] = field(default_factory=dict)  # by id: what each change is predicted to do

    @property
    def shows_savings(self) -> bool:
        """Return whether the recording carries a prediction of what changes do together."""
        return self.record_again is None and not self.is_limited

    @property
    def factor(self) -> tuple[float, float, float] | None:
        """Return how many times faster the step becomes: least, predicted, most (infinity if nothing known limits it).

        None for less than a tenth, which is no gain worth a number.
        """
        a = self.after
        if a is None or a.after_ns <= 0 or self.now_ns < MIN_FACTOR * a.after_ns:
            return None
        middle, high = self.now_ns / a.after_ns, self.now_ns / a.low_ns if a.low_ns > 0 else math.inf
        return self.now_ns / a.high_ns, middle, high if high <= MAX_HIGH * middle else math.inf


def answer(d: Diagnosis) -> Answer:
    """Return the first screen of a diagnosis."""
    why = record_again(d)
    limited = limit(d)
    each = {} if why is not None else predictions(d, is_sure=states_savings(d))
    shown = () if why is not None else cards(d, each)
    measured = None if why is not None else _proven(d)
    after, num = measured or possible_step(d, shown)
    if measured is None and limited is not None:
        after = None
    pill, meaning, tone = _pill(d, is_known=why is None)
    tried = _to_try(d, each) if why is None else None
    no_card = _no_card(d, shown) if why is None else (None, "")
    return Answer(
        pill=Words(pill),
        meaning=Words(meaning),
        tone=tone,
        headline=headline(d, why, limited, has_trial=tried is not None),
        now_ns=d.step_ns,
        after=after,
        num_changes=num,
        cards=shown,
        record_again=why,
        command=command(d) if why is not None else "",
        checked=checked(d) if d.dominant is None and why is None else None,
        to_try=tried[0] if tried else None,
        try_command=tried[1] if tried else "",
        cautions=tuple(cautions(d, again=why is not None)),
        is_limited=limited is not None,
        is_measured=measured is not None,
        parts=() if why is not None else _parts(d),
        view=None if why is not None else _view(d),
        run_share=None if why is not None else _run_share(d),
        no_change=no_card[0],
        next_command=no_card[1],
        refuted=took_longer(d),
        each=each,
    )


def _no_card(d: Diagnosis, shown: tuple[Card, ...]) -> tuple[Words | None, str]:
    """Return why no card is for the finding that answers, None if one is or no finding answers.

    With it comes the command that shows more of the finding, "" where none does.
    """
    first = _answering(d)
    if first is None or any(card.prescription.rule == d.dominant for card in shown):
        return None, ""
    mine = {p.id for p in d.prescriptions if p.rule == d.dominant}
    if mine & took_longer(d):
        return Words("A change that was tried made the step longer; no other is known for it."), ""
    if mine:
        return Words("No change for it is predicted to save 1 % of the step."), ""
    if is_one_rank(d):
        words = "The cause may be on another rank. Analyze the traces of all {num} ranks together:"
        return Words(words, {"num": d.source.world_size}), "diagnose analyze FOLDER"
    if not any(w.file or w.library for w in first.where):
        words = "This trace has no Python stacks. To see the line and the change for it, record again with:"
        return Words(words), "diagnose trace train.py"
    return _unknown(first), ""


def _unknown(first: Finding) -> Words:
    """Return that no change is known for a finding, with its line where it has one."""
    place = next((w for w in first.where if w.file and w.line), None)
    if place is None:
        return Words("No change is known for it.")
    line = f"{one_line((place.file or '').rpartition('/')[2])}:{place.line}"
    return Words("No change is known for what takes the time at {line}.", {"line": line})


def with_words(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the headline and the summary of its first screen."""
    a = answer(d)
    lines = [f"{english(a.pill)}: {english(a.meaning)}", english(a.headline)]
    if a.cards:
        first, saves = a.cards[0], ""
        if (p := first.prediction) is not None:  # in the words of its card
            time = duration(p.saves_ns) if p.is_promise else f"up to {duration(p.most_ns)}"
            saves = f" (saves {time})"
        lines.append(f"First change: {first.prescription.title}{saves}")
    return replace(d, headline=english(a.headline), summary=tuple(lines))


def shown_rank(d: Diagnosis) -> int | None:
    """Return the rank that everything but the tables of ranks is about, None if it cannot be told."""
    same = [r.rank for r in d.ranks if r.step_ns == d.step_ns and r.partition == d.partition]
    return same[0] if same else None


def _answering(d: Diagnosis) -> Finding | None:
    return next((f for f in d.findings if f.rule == d.dominant), None)


def _proven(d: Diagnosis) -> tuple[Prediction, int] | None:
    """Return the step as the best trial measured it, faster for certain and with the same losses; None without one."""
    gains = [t for t in d.trials if t.kind != "without" and not t.failure and t.interval[0] > 1]
    best = max((t for t in gains if t.numerics != "drifted"), key=lambda t: t.speed_up, default=None)
    if best is None:
        return None
    ends = (d.step_ns / best.speed_up, d.step_ns / best.interval[1], d.step_ns / best.interval[0])
    return Prediction(d.step_ns, *ends, is_replayed=True), max(len(best.ids), 1)


def _pill(d: Diagnosis, *, is_known: bool) -> tuple[str, str, Tone]:
    if not is_known:
        return _PILLS["unknown"]
    legend = d.legends.get(d.dominant or "")
    if legend is not None and legend.heading:
        return legend.heading, legend.meaning, "bad"
    if _run_share(d) is not None:
        return _PILLS["run"]
    pill, meaning, tone = _PILLS["no records" if "device records" in d.unseen else d.verdict]
    if d.dominant is None:
        return pill, meaning, "good" if d.verdict == "kernel-bound" or not d.findings else "info"
    return pill, meaning, tone


def _parts(d: Diagnosis) -> tuple[tuple[str, float], ...]:
    """Return what the step consists of: what the GPU does, by families of kernels where it is full, and its idle time.

    Without a device it is what the host does. Of a step that is long now and then, all but that is the usual step. The
    causes of idle time stand elsewhere: a cause takes another time than a step without it saves.
    """
    p, rare = d.partition, _run_share(d) or 0.0
    if p is None:
        usual = sorted(((_label(d, name), share) for name, share in d.host_by_cause.items()), key=lambda x: -x[1])
    else:
        families = d.kernel_families if d.verdict == "kernel-bound" or d.dominant is None else {}
        shown = {name if name != "copy" else "copy kernels": share for name, share in families.items()}
        usual = [(name, share * p.compute) for name, share in (shown or {"computing": 1.0}).items()]
        usual += [("communication not overlapped", p.exposed_communication), ("copies not overlapped", p.exposed_copy)]
        usual.append(("idle", p.idle))
        if families:  # more parts than a line names
            usual.sort(key=lambda part: -part[1])
    found = [(_label(d, d.dominant or ""), rare)] if rare else []
    found += [(name, share * (1 - rare)) for name, share in usual]
    return tuple((name, share) for name, share in found if share >= MIN_PART_SHARE)


def _label(d: Diagnosis, cause: str) -> str:
    """Return what the time of a cause is, in words: a finding of the same name may save another time."""
    legend = d.legends.get(cause)
    return legend.label if legend is not None and legend.label else cause


def _run_share(d: Diagnosis) -> float | None:
    """Return the share of the run that the finding which answers takes, if it rests on all steps of the run."""
    finding = _answering(d)
    return finding.share if finding is not None else None


def _to_try(d: Diagnosis, each: Mapping[str, Prediction]) -> tuple[Words, str] | None:
    """Return which changes only a trial shows the effect of, and its command; None if there are none, or all ran."""
    ids = [name for name in d.to_try if name not in each and not any(name in trial.ids for trial in d.trials)]
    if not ids or (d.queue is not None and d.dominant is not None):
        return None
    words = "Faster kernels may exist, which a recording cannot show. To try {changes} and time the step:"
    said = Words(words, {"changes": ", ".join(ids)})
    asked = ",".join(ids)
    if not d.source.command and (d.queue is None or d.source.torch):  # a step function that a capture holds
        return said, f'diagnose.prove(make_step, apply="{asked}")'
    return said, f"diagnose prove --apply {asked} {d.source.command or 'train.py'}"


def _view(d: Diagnosis) -> Words | None:
    """Return whose step and changes a report of several ranks shows; of one rank what a step is, where that is odd."""
    if len(d.ranks) < 2:
        return _steps_of_rollouts(d)
    shown, late = shown_rank(d), late_rank(d)
    if shown is None:
        words = "Step and changes are those of one of {num} ranks, the one waited for or else the slowest."
        return Words(words, {"num": len(d.ranks)})
    if shown == late and len(d.ranks) == 2:
        return Words("Step and changes are those of rank {num}, which the other one waits for.", {"num": shown})
    if shown == late:
        words = "Step and changes are those of rank {num}, which the other {others} wait for."
        return Words(words, {"num": shown, "others": len(d.ranks) - 1})
    words = "Step and changes are those of rank {num}, whose step is the longest of {ranks}."
    return Words(words, {"num": shown, "ranks": len(d.ranks)})


def _steps_of_rollouts(d: Diagnosis) -> Words | None:
    """Return how many steps follow a rollout, None if none do so regularly: a loop's iteration is more than a step."""
    found = (f.facts for f in d.findings if f.facts.get("phase") == "rollout" and f.facts.get("regular"))
    period = next((facts.get("period") for facts in found), None)
    if d.source.found_steps_by != "optimizer" or not isinstance(period, int):
        return None
    return Words("A step is one optimizer.step(); {num} of them follow each rollout.", {"num": period})

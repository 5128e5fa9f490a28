"""The headline: the first finding in at most sixteen words, or how little there is to gain."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from diagnose.answer.cards import MIN_FACTOR
from diagnose.answer.ranking import worth_share
from diagnose.model.diagnosis import Diagnosis, Finding
from diagnose.model.limits import MIN_GAIN_SHARE
from diagnose.model.rules import LATE_RANKS, OUTSIDE, UNEXPLAINED_HOST, WORK
from diagnose.model.words import Count, Words, english
from diagnose.text.numbers import duration, lower_first, percent
from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from diagnose.model.job import Job

__all__ = ["MAX_WORDS", "SMALL", "checked", "headline"]

MAX_WORDS = 16  # what is read at a glance
MOSTLY = 0.5  # of the step: what operators compute, or what lies between them, which no rule found avoidable
SMALL = 1 - 1 / MIN_FACTOR  # of the step
PEAK_RATES = "peak rates of the device"
MAX_NAMED = 3  # late ranks that a headline lists: of more it has their number


def headline(d: Diagnosis, again: Words | None, limit: Words | None = None, *, has_trial: bool = False) -> Words:
    """Return the answer.

    Args:
        d: the diagnosis.
        again: why the recording cannot be relied on, None if it can.
        limit: what keeps it from showing the possible step, which leads the answer; None if nothing does.
        has_trial: whether a trial is offered of what no recording judges.
    """
    if again is not None:
        why = lower_first(re.split("[:：]", english(again).rstrip(".。"), maxsplit=1)[0])
        return _fitted(Words("Record again first: {why}"), "why", why)
    finding = next((f for f in d.findings if f.rule == d.dominant), None)
    if finding is None:
        if d.source.accelerator:
            return Words(
                "No {device} tasks are recorded, and nothing was found on the CPU", {"device": d.source.accelerator}
            )
        little = _little(d, has_trial=has_trial)
        return little if limit is None else Words("{limit}: {what}", {"limit": limit, "what": little})
    j = d.job
    if finding.rule == LATE_RANKS and j is not None and j.begins_late is not None and not j.late_ranks:
        values = {"num": j.begins_late, "time": duration(j.begins_late_ns)}
        return Words("The ranks wait for rank {num}, which begins its step {time} late", values)
    title, share = finding.title.strip().rstrip(".。"), _share(d, finding)
    lead = Words("{limit}: {what}", {"limit": limit}) if limit is not None else None
    if lead is None and share and finding.worth_ns < SMALL * d.step_ns and finding.share is None:
        lead = Words("Small gains only: {what}")
    if j is not None and j.late_ranks and j.cause == finding.rule:  # the late rank's own finding, which has no rank
        lead = _late(j)
    if lead is not None:
        return _fitted(lead, "what", lower_first(title), share)
    return _fitted(Words("{what}"), "what", title[:1].upper() + title[1:], share)


def _late(j: Job) -> Words:
    num = len(j.late_ranks)
    if num > MAX_NAMED:
        return Words("{ranks} are late: {what}", {"ranks": Count(num, "rank")})
    *others, last = map(str, j.late_ranks)
    if not others:
        return Words("Rank {num} is late: {what}", {"num": last})
    return Words("Ranks {others} and {num} are late: {what}", {"others": ", ".join(others), "num": last})


def _little(d: Diagnosis, *, has_trial: bool) -> Words:
    """Return how little there is to gain, or that what was recorded does not show it, and what the step consists of."""
    start = Words("Little to gain")
    if has_trial:
        start = Words("Little waste found") if d.findings else Words("No waste found")
    if d.ignored:
        start = Words("Nothing else to fix") if not d.findings else Words("Little else to gain")
    elif not d.findings and not d.not_checked and not has_trial:
        start = Words("Nothing to fix")
    if not _lacking(d):
        return _of_step(d, start)
    several = [_of_step(d, _found_without(d, num)) for num in (2, 1)]
    return next((words for words in several if len(english(words).split()) <= MAX_WORDS), several[-1])


def _lacking(d: Diagnosis) -> dict[str, int]:
    """Return the records that another recording would have; the peak rates of a device are no record."""
    return {name: num for name, num in d.unseen.items() if name != PEAK_RATES}


def _found_without(d: Diagnosis, most: int) -> Words:
    """Return that nothing or little was found, and which records are missing that may hide an answer."""
    names = [Words(name) for name in list(_lacking(d))[:most]]
    if len(names) == 1:
        words = "Little found without {records}" if d.findings else "Nothing found without {records}"
        return Words(words, {"records": names[0]})
    words = "Little found without {records} and {last}" if d.findings else "Nothing found without {records} and {last}"
    return Words(words, {"records": names[0], "last": names[1]})


def _of_step(d: Diagnosis, start: Words) -> Words:
    """Return what the step consists of, after a start."""
    if d.queue is None:
        return _little_of_host(d, start)
    step = duration(d.step_ns)
    whole = Words("each {step} step", {"step": step})
    if d.source.found_steps_by == "none":
        whole = Words("the {step} recording", {"step": step})
    if d.verdict == "kernel-bound" and d.queue.idle_share < SMALL:
        values = {"start": start, "share": percent(d.queue.busy_share), "whole": whole}
        if d.flops is not None:
            return Words(
                "{start}: the GPU is busy {share} of {whole}, MFU {mfu}", {**values, "mfu": percent(d.flops.share, 0)}
            )
        return Words("{start}: the GPU is busy {share} of {whole}", values)
    words = "{start}: the GPU idles {share} of {whole}, not avoidably"
    if d.ignored:
        words = "{start}: the GPU idles {share} of {whole}, not avoidably otherwise"
    return Words(words, {"start": start, "share": percent(d.queue.idle_share), "whole": whole})


def _little_of_host(d: Diagnosis, start: Words) -> Words:
    """Return the same without a device: whether results are needed no trace shows."""
    words, share = "{start}: no rule found avoidable time in the {step} step", 0.0
    if d.findings:
        words = "{start}: small savings only in the {step} step"
    elif d.ignored:
        words = "{start}: no other rule found avoidable time in the {step} step"
    if (computed := d.host_by_cause.get(WORK, 0.0)) >= MOSTLY and not d.ignored:
        words, share = "{start}: operators compute {share} of the {step} step, needed or not", computed
    elif (between := d.host_by_cause.get(OUTSIDE, 0.0)) >= MOSTLY and not d.ignored:
        words, share = "{start}: {share} of the {step} step lies between operators, cause not recorded", between
    elif (unknown := d.host_by_cause.get(UNEXPLAINED_HOST, 0.0)) >= MOSTLY and not d.ignored:
        words, share = "{start}: the recording shows no cause for {share} of the {step} step", unknown
    if share and d.unseen:
        words = words.rpartition(", ")[0] or words
    elif share:
        start = Words("Little found") if d.findings else Words("Nothing found")
    return Words(words, {"start": start, "step": duration(d.step_ns), "share": percent(share, 0)})


def _share(d: Diagnosis, finding: Finding) -> tuple[Words, ...]:
    """Return in brackets what the step saves without the finding, as in the list of findings; then in fewer words.

    Nothing is returned of a finding without worth.
    """
    if d.step_ns <= 0 or not finding.worth_ns or not math.isfinite(finding.worth_ns):
        return ()
    words = "{share} of the step to gain"
    if finding.share is not None:
        words = "{share} of the run to gain"
    elif d.source.found_steps_by == "none":
        words = "{share} of the recording to gain"
    value = {"share": percent(worth_share(finding, d.step_ns))}
    return (
        Words(" ({words})", {"words": Words(words, value)}),
        Words(" ({share} to gain)", value),
        Words(" ({share})", value),
    )


def _fitted(lead: Words, name: str, text: str, shares: tuple[Words, ...] = ()) -> Words:
    """Return the lead with a text and a share in at most sixteen words.

    Where they are more, the share is the one of fewer words, and clauses at the text's end go, then words.
    """
    room = MAX_WORDS - len(english(lead).replace(f"{{{name}}}", "").split())
    share = next((s for s in shares if len((text + english(s)).split()) <= room), shares[-1] if shares else None)
    most = room - len(english(share).split()) if share is not None else room
    while len(text.split()) > most:
        shorter = max((text.rpartition(mark)[0] for mark in (", ", ": ", "; ")), key=len)
        if len(shorter.split()) < 3:
            text = " ".join(text.split()[:most]) + "…"
            break
        text = shorter
    said = Words(lead.template, {**lead.values, name: Words(one_line(text))})
    return said if share is None else Words("{said}{end}", {"said": said, "end": share})


def checked(d: Diagnosis) -> Words | None:
    """Return how many rules found everything in order, and what the others lack, None if none was applied."""
    if not d.checked:
        return None
    values: dict[str, object] = {"num": len(d.checked), "found": "", "missing": "", "again": ""}
    if d.findings and d.step_ns > 0 and d.findings[0].worth_ns >= MIN_GAIN_SHARE * d.step_ns:
        first = d.findings[0]
        share, title = percent(worth_share(first, d.step_ns)), lower_first(one_line(first.title))
        values["found"] = Words(" Largest finding: {title} ({share} to gain).", {"title": Words(title), "share": share})
    if d.not_checked:
        lacking = {f"record{i}": Words(name) for i, name in enumerate(d.unseen)}
        listed = Words(", ".join(f"{{{key}}}" for key in lacking), lacking)
        words = " {num} could not run (missing: {listed})." if lacking else " {num} could not run (missing data)."
        values["missing"] = Words(words, {"num": len(d.not_checked), "listed": listed})
    if _lacking(d):
        values["again"] = Words(
            " To record what is missing: diagnose trace {script}", {"script": d.source.command or "train.py"}
        )
    return Words("{num} checks passed.{missing}{found}{again}", values)

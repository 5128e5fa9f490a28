"""The words of the first screen: its headline, why to record again, what was checked, what limits its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from diagnose.model.diagnosis import Diagnosis, Finding, IgnoredFinding
from diagnose.model.job import LATE_RANKS
from diagnose.model.rules import OUTSIDE, WORK
from diagnose.reports.beside_recording import MIN_OVERHEAD, beside_recording
from diagnose.reports.format import duration, growth, percent, plural
from diagnose.reports.job_words import names_late
from diagnose.reports.language import ENGLISH, current, tr
from diagnose.text.plain_text import one_line
from diagnose.text.titles import LARGEST_AVOIDABLE, lower_first

__all__ = [
    "MAX_WORDS",
    "cautions",
    "checked",
    "command",
    "headline",
    "late_rank",
    "passes_words",
    "record_again",
    "shown_rank",
    "to_try",
    "view",
]

MAX_WORDS = 16  # of the headline: what is read at a glance
MOSTLY = 0.5  # of the step: what operators compute, or what lies between them, which no rule found avoidable
MIN_CPU_WAIT = (
    0.2  # of the watched time: at a half, 6 of 9 scripts with known wastes were answered otherwise than alone
)
MAX_OVERHEAD = 1.0  # a step that takes twice as long while it is recorded is another step


def record_again(d: Diagnosis) -> str:
    """Return why the recording cannot carry an answer, "" where it can."""
    if d.record_again:
        return tr(d.record_again)
    if d.prescriptions and d.prescriptions[0].records_again:
        first = d.findings[0] if d.findings else None
        if first is not None and first.rule == d.prescriptions[0].rule and not d.prescriptions[0].records_more:
            return _sentence(first.title.partition(":")[0])
        return tr("Too little of the device's work is in this recording.")
    answer = next((f for f in d.findings if f.rule == d.dominant), None)
    if answer is not None and answer.unrecorded_share is not None:
        return ""
    if d.profiler_overhead is not None and d.profiler_overhead >= MAX_OVERHEAD:
        return tr(
            "Recording made the step {factor} × as long: it shows the profiler's own cost.",
            factor=f"{1 + d.profiler_overhead:.1f}",
        )
    return ""


def command(d: Diagnosis) -> str:
    """Return the command that records again."""
    if d.prescriptions and d.prescriptions[0].records_again and d.prescriptions[0].after:
        return one_line(d.prescriptions[0].after.splitlines()[0].partition("#")[0].strip())
    return f"diagnose trace --quick {d.source.command or 'train.py'}"


def headline(d: Diagnosis, why: str) -> str:
    """Return the answer in at most sixteen words; ``why`` states why the recording cannot be relied on, or is empty."""
    if why:
        again = re.split("[:：]", why.rstrip(".。"), maxsplit=1)[0]
        return _fitted(tr("Record again first: {why}", why=lower_first(again)), "")
    finding = next((f for f in d.findings if f.rule == d.dominant), None)
    if finding is None:
        return _of_nothing(d)
    j = d.job
    if finding.rule == LATE_RANKS and j is not None and j.begins_late is not None and not j.late_ranks:
        late = duration(j.begins_late_ns)
        return tr("The ranks wait for rank {num}, which begins its step {time} late", num=j.begins_late, time=late)
    title, share = _sentence(finding.title).rstrip(".。"), _share(d, finding)
    if j is not None and j.late_ranks and j.cause == finding.rule:  # the late rank's own finding, which has no rank
        return _fitted(lower_first(title), share, names_late(j))
    if LARGEST_AVOIDABLE not in d.headline and tr(LARGEST_AVOIDABLE) not in d.headline:  # which may be translated
        return _fitted(title, share)
    return _fitted(lower_first(title), share, tr("Largest avoidable cost: {title}", title=""))


def _of_nothing(d: Diagnosis) -> str:
    """Return the answer where no finding is one: how little was found, and what the step consists of."""
    step = duration(d.step_ns)
    start = tr("Nothing to fix") if not d.findings else tr("Little to gain")
    if d.ignored:
        start = tr("Nothing else to fix") if not d.findings else tr("Little else to gain")
    if d.queue is None:
        words = "{start}: no rule found avoidable time in the {step} step"
        if d.ignored:
            words = "{start}: no other rule found avoidable time in the {step} step"
        computed = d.host_by_cause.get(WORK, 0.0)
        if computed >= MOSTLY and not d.ignored:  # whether their results are needed no trace shows
            start = tr("Little found") if d.findings else tr("Nothing found")
            words = "{start}: operators compute {share} of the {step} step, needed or not"
        between = d.host_by_cause.get(OUTSIDE, 0.0)
        if between >= MOSTLY and not d.ignored:
            computed, start = between, tr("Little found") if d.findings else tr("Nothing found")
            words = "{start}: {share} of the {step} step lies between operators, cause not recorded"
        return _fitted(tr(words, start=start, step=step, share=percent(computed, 0)), "")
    found_no_steps = d.source.found_steps_by == "none"
    whole = tr("the {step} recording", step=step) if found_no_steps else tr("each {step} step", step=step)
    if d.verdict == "kernel-bound":
        busy = percent(d.queue.busy_share)
        return _fitted(tr("{start}: the GPU is busy {share} of {whole}", start=start, share=busy, whole=whole), "")
    idle = percent(d.queue.idle_share)
    words = "{start}: the GPU idles {share} of {whole}, without avoidable waste"
    if d.ignored:
        words = "{start}: the GPU idles {share} of {whole}, without other avoidable waste"
    return _fitted(tr(words, start=start, share=idle, whole=whole), "")


def _share(d: Diagnosis, finding: Finding) -> str:
    if d.step_ns <= 0 or not finding.lost_ns or not math.isfinite(finding.lost_ns):
        return ""
    share = percent(min(finding.share_of(d.step_ns), 1.0))
    words = tr("{share} of the step", share=share)
    if finding.share is not None:
        words = tr("{share} of the run", share=share)
    elif d.source.found_steps_by == "none":
        words = tr("{share} of the recording", share=share)
    return tr(" ({words})", words=words)


def _fitted(text: str, share: str, lead: str = "") -> str:
    """Return lead, text and share in at most sixteen words; clauses at the text's end are left out, then words."""
    if current() != ENGLISH:
        return one_line(lead + text + share)
    most = MAX_WORDS - len(lead.split())
    if len((text + share).split()) > most and "%" in share:
        share = f" ({share.strip(' ()').partition(' of ')[0]})"
    share_words = len(share.split())
    while len(text.split()) + share_words > most:
        shorter = max((text.rpartition(mark)[0] for mark in (", ", ": ", "; ")), key=len)
        if len(shorter.split()) < 3:
            text = " ".join(text.split()[: most - share_words]) + "…"
            break
        text = shorter
    return one_line(lead + text + share)


def checked(d: Diagnosis) -> str:
    """Return what was checked and found in order."""
    if not d.checked:
        return ""
    missing = tr("; {rules} lacked data", rules=plural(len(d.not_checked), "rule")) if d.not_checked else ""
    most = max(d.findings, key=lambda f: f.lost_ns, default=None)
    found = tr("none matched 1 % of the step or more")
    if most is not None and d.step_ns > 0:
        found = tr("the largest finding takes {share}: {rule}", share=percent(most.share_of(d.step_ns)), rule=most.rule)
    return tr("{rules} checked, {found}{missing}.", rules=plural(len(d.checked), "rule"), found=found, missing=missing)


def to_try(d: Diagnosis) -> tuple[str, str]:
    """Return which changes only a trial shows the effect of, and its command; "" where there are none, or all ran."""
    ids = [name for name in d.to_try if not any(name in trial.ids for trial in d.trials)]
    if not ids:
        return "", ""
    words = tr(
        "Operators compute {share} of the step. Only a trial shows what {changes} would save:",
        share=percent(d.host_by_cause.get(WORK, 0.0), 0),
        changes=", ".join(ids),
    )
    asked = ",".join(ids)
    if not d.source.command:  # a step function was diagnosed, which a function makes for each run
        return words, f'diagnose.prove(make_step, apply="{asked}")'
    return words, f"diagnose prove --apply {asked} {d.source.command}"


def cautions(d: Diagnosis, why: str) -> list[str]:
    """Return what limits the numbers of the first screen, one sentence each."""
    found = [_left_out(d.ignored)] if d.ignored else []
    if d.profiler_overhead is not None and d.profiler_overhead >= MIN_OVERHEAD and not why:
        found.append(
            tr(
                "Recording made the step {share} longer: shares are of the recorded step, {step}.",
                share=growth(d.profiler_overhead),
                step=duration(d.step_ns),
            )
        )
    found += beside_recording(d, why)
    if d.recording_estimate >= MIN_OVERHEAD and d.verdict != "kernel-bound" and not why:
        words = "Recording takes the host up to {share} of the step: what the host takes is less without it."
        if d.source.found_steps_by == "none":
            words = "Recording takes the host up to {share} of its time: what the host takes is less without it."
        found.append(tr(words, share=percent(d.recording_estimate, 0)))
    if d.cpu_wait >= MIN_CPU_WAIT:
        found.append(
            tr(
                "The training thread waited for a core {share} of the time: with a CPU of its own, other things may "
                "cost most. Measure on an idle machine, or with fewer threads.",
                share=percent(d.cpu_wait, 0),
            )
        )
    if d.source.world_size > 1 and len(d.ranks) < 2:
        found.append(
            tr("One rank of {num}: what its collectives wait for is not in this recording.", num=d.source.world_size)
        )
    j = d.job
    if j is not None and d.dominant == LATE_RANKS and j.begins_late is not None and not j.late_ranks and not why:
        found.append(
            tr(
                "Why rank {num} begins late lies before the {steps}: record more of every rank to see whether it "
                "recurs.",
                num=j.begins_late,
                steps=tr("recorded step") if len(j.steps) == 1 else plural(len(j.steps), "recorded step"),
            )
        )
    low = next((f for f in d.findings if f.rule == d.dominant and f.confidence == "low"), None)
    if low is not None and not why:
        found.append(tr("Low confidence: the recording shows the cost, but hardly its cause."))
    return found


def passes_words(d: Diagnosis) -> str:
    """Return how many backward passes a step has, where an optimizer's call adds several up; "" elsewhere."""
    num = d.passes_per_update or 1
    return tr(", {num} backward passes before each optimizer call", num=num) if num > 1 else ""


def _left_out(ignored: Sequence[IgnoredFinding]) -> str:
    """State how many findings were left out, which, and why."""
    listed = ", ".join(map(_ignored, ignored))
    return tr("Left out as asked: {findings}: {listed}.", findings=plural(len(ignored), "finding"), listed=listed)


def _ignored(one: IgnoredFinding) -> str:
    finding, by = one.finding, tr("by an option or setting")
    if one.by == "comment":
        place = finding.where[0]
        line = f"{one_line((place.file or '').rpartition('/')[2])}:{place.line}"
        by = tr("by the comment at {line}", line=line)
    return tr("{rule} ({time} per step, {by})", rule=finding.rule, time=duration(finding.lost_ns), by=by)


def _steps_of_rollouts(d: Diagnosis) -> str:
    """Return how many steps follow a rollout, "" where none do so regularly: a loop's iteration is more than a step."""
    found = (f.facts for f in d.findings if f.facts.get("phase") == "rollout" and f.facts.get("regular"))
    period = next((facts.get("period") for facts in found), None)
    if d.source.found_steps_by != "optimizer" or not isinstance(period, int):
        return ""
    return tr("A step is one optimizer.step(); {num} of them follow each rollout.", num=period)


def late_rank(d: Diagnosis) -> int | None:
    """Return the rank that the others wait for, None where there is none or they take turns."""
    if d.job is None:
        return None
    return d.job.late_ranks[0] if d.job.late_ranks else d.job.begins_late


def shown_rank(d: Diagnosis) -> int | None:
    """Return the rank that everything but the tables of ranks is about, None where it cannot be told."""
    same = [r.rank for r in d.ranks if r.step_ns == d.step_ns and r.partition == d.partition]
    return same[0] if same else None


def view(d: Diagnosis) -> str:
    """Return whose step and changes a report of several ranks shows; of one rank what a step is, where that is odd."""
    if len(d.ranks) < 2:
        return _steps_of_rollouts(d)
    shown, late = shown_rank(d), late_rank(d)
    if shown is None:
        return tr(
            "Step and changes are those of one of {num} ranks, the one waited for or else the slowest.",
            num=len(d.ranks),
        )
    if shown == late and len(d.ranks) == 2:
        return tr("Step and changes are those of rank {num}, which the other one waits for.", num=shown)
    if shown == late:
        return tr(
            "Step and changes are those of rank {num}, which the other {others} wait for.",
            num=shown,
            others=len(d.ranks) - 1,
        )
    return tr("Step and changes are those of rank {num}, the slowest of {ranks}.", num=shown, ranks=len(d.ranks))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "。")) else ".")

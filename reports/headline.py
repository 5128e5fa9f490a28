"""The words of the first screen: its headline, why to record again, what was checked, what limits its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnose.model.diagnosis import Diagnosis, Finding, IgnoredFinding
from diagnose.reports.format import duration, growth, percent, plural
from diagnose.text.plain_text import one_line

__all__ = ["MAX_WORDS", "cautions", "checked", "command", "headline", "late_rank", "record_again", "shown_rank", "view"]

MAX_WORDS = 16  # of the headline: what is read at a glance
MIN_OVERHEAD = 0.2  # of the unrecorded step: recording that costs more is stated beside the answer
MAX_OVERHEAD = 1.0  # a step that takes twice as long while it is recorded is another step


def record_again(d: Diagnosis) -> str:
    """Return why the recording cannot carry an answer, "" where it can."""
    if d.prescriptions and d.prescriptions[0].records_again:
        first = d.findings[0] if d.findings else None
        if first is not None and first.rule == d.prescriptions[0].rule:
            return _sentence(first.title.partition(":")[0])
        return "Too little of the device's work is in this recording."
    if d.profiler_overhead is not None and d.profiler_overhead >= MAX_OVERHEAD:
        return f"Recording made the step {1 + d.profiler_overhead:.1f} × as long: it shows the profiler's own cost."
    return ""


def command(d: Diagnosis) -> str:
    """Return the command that records again."""
    if d.prescriptions and d.prescriptions[0].records_again and d.prescriptions[0].after:
        return one_line(d.prescriptions[0].after.splitlines()[0].partition("#")[0].strip())
    return f"diagnose trace --quick {d.source.command or 'train.py'}"


def headline(d: Diagnosis, why: str) -> str:
    """Return the answer in at most sixteen words; ``why`` states why the recording cannot be relied on, or is empty."""
    if why:
        return _fitted("Record again first: " + _lower(why.rstrip(".").partition(":")[0]), "")
    step = f"{duration(d.step_ns)} step"
    finding = next((f for f in d.findings if f.rule == d.dominant), None)
    if finding is None:
        else_, other = (" else", " other") if d.ignored else ("", "")
        start = f"Nothing{else_} to fix" if not d.findings else f"Little{else_} to gain"
        if d.queue is None:
            return _fitted(f"{start}: no{other} rule found avoidable time in the {step}", "")
        if d.verdict == "kernel-bound":
            return _fitted(f"{start}: the GPU is busy {percent(d.queue.busy_share)} of each {step}", "")
        return _fitted(
            f"{start}: the GPU idles {percent(d.queue.idle_share)} of each {step}, without{other} avoidable waste", ""
        )
    j = d.job
    if finding.rule == "straggler" and j is not None and j.begins_late is not None and not j.late_ranks:
        late = duration(j.begins_late_ns)
        return f"The ranks wait for rank {j.begins_late}, which begins its step {late} late"
    return _fitted(_sentence(finding.title).rstrip("."), _share(d, finding))


def _share(d: Diagnosis, finding: Finding) -> str:
    if d.step_ns <= 0 or not finding.lost_ns or not math.isfinite(finding.lost_ns):
        return ""
    of = "run" if finding.share is not None else "step"
    return f" ({percent(min(finding.share_of(d.step_ns), 1.0))} of the {of})"


def _fitted(text: str, share: str) -> str:
    """Return the text and the share in at most sixteen words; clauses at the end are left out, then words."""
    if len((text + share).split()) > MAX_WORDS and "%" in share:
        share = f" ({share.strip(' ()').partition(' of ')[0]})"
    share_words = len(share.split())
    while len(text.split()) + share_words > MAX_WORDS:
        shorter = max((text.rpartition(mark)[0] for mark in (", ", ": ", "; ")), key=len)
        if len(shorter.split()) < 3:
            text = " ".join(text.split()[: MAX_WORDS - share_words]) + "…"
            break
        text = shorter
    return one_line(text + share)


def checked(d: Diagnosis) -> str:
    """Return what was checked and found in order."""
    if not d.checked:
        return ""
    missing = f"; {plural(len(d.not_checked), 'rule')} lacked data" if d.not_checked else ""
    most = max(d.findings, key=lambda f: f.lost_ns, default=None)
    found = "none found 1 % of the step that can be won back"
    if most is not None and d.step_ns > 0:
        found = f"the largest finding takes {percent(most.share_of(d.step_ns))}: {most.rule}"
    return f"{plural(len(d.checked), 'rule')} checked, {found}{missing}."


def cautions(d: Diagnosis, why: str) -> list[str]:
    """Return what limits the numbers of the first screen, one sentence each."""
    found = [_left_out(d.ignored)] if d.ignored else []
    if d.profiler_overhead is not None and d.profiler_overhead >= MIN_OVERHEAD and not why:
        found.append(
            f"Recording made the step {growth(d.profiler_overhead)} longer: shares are of the recorded step, "
            f"{duration(d.step_ns)}."
        )
    if d.source.world_size > 1 and len(d.ranks) < 2:
        found.append(f"One rank of {d.source.world_size}: what its collectives wait for is not in this recording.")
    j = d.job
    if j is not None and d.dominant == "straggler" and j.begins_late is not None and not j.late_ranks and not why:
        steps = "recorded step" if len(j.steps) == 1 else f"{len(j.steps)} recorded steps"
        found.append(
            f"Why rank {j.begins_late} begins late lies before the {steps}: record more of every rank to see whether "
            "it recurs."
        )
    low = next((f for f in d.findings if f.rule == d.dominant and f.confidence == "low"), None)
    if low is not None and not why:
        found.append("Low confidence: the recording shows the cost, but hardly its cause.")
    return found


def _left_out(ignored: Sequence[IgnoredFinding]) -> str:
    """State how many findings were left out, which, and why."""
    listed = ", ".join(map(_ignored, ignored))
    return f"Left out as asked: {plural(len(ignored), 'finding')}: {listed}."


def _ignored(one: IgnoredFinding) -> str:
    finding, by = one.finding, "by an option or setting"
    if one.by == "comment":
        place = finding.where[0]
        by = f"by the comment at {one_line((place.file or '').rpartition('/')[2])}:{place.line}"
    return f"{finding.rule} ({duration(finding.lost_ns)} per step, {by})"


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
    """Return whose step and changes a report of several ranks shows, "" for one rank."""
    if len(d.ranks) < 2:
        return ""
    shown, late = shown_rank(d), late_rank(d)
    if shown is None:
        return f"Step and changes are those of one of {len(d.ranks)} ranks, the one waited for or else the slowest."
    if shown == late:
        return f"Step and changes are those of rank {shown}, which the other {len(d.ranks) - 1} wait for."
    return f"Step and changes are those of rank {shown}, the slowest of {len(d.ranks)}."


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _lower(text: str) -> str:
    first = text.split(" ", 1)[0]
    return text if first != first.capitalize() else text[:1].lower() + text[1:]

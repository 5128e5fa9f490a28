"""Leaves out findings that the user does not want to see: by the id of their rule, or by a comment in the program.

A comment ``# diagnose: ignore=host-sync`` on the line that a finding names first, or on a line of its own above it,
leaves that finding out. Nothing is calculated anew: partition, causes, kernels and savings stay as they are, and the
diagnosis holds what was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.answer.ranking import answering
from diagnose.answer.screen import with_words
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis, Finding, IgnoredFinding
from diagnose.model.events import Note
from diagnose.model.locations import Where
from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from diagnose.model.rules import RuleMeta

__all__ = ["RuleChoice", "leave_out"]

SIMILAR = 0.6  # of difflib: an id with a few letters wrong has more
MAX_SOURCE_BYTES = 4 << 20  # a longer file was not written by hand, and is not searched for comments
COMMENT = re.compile(r"#\s*diagnose:\s*ignore=\s*([\w-]+(?:\s*,\s*[\w-]+)*)")


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """Which rules' findings are shown."""

    select: frozenset[str] = field(default_factory=frozenset)  # empty: all
    ignore: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> RuleChoice:
        """Return the choice of ``--select`` and ``--ignore``, each of which may hold several ids with commas.

        Raises:
            UsageError: there is no rule of that name.
        """
        return cls(frozenset(_known(select, "--select")), frozenset(_known(ignore, "--ignore")))

    def leaves_out(self, rule: str) -> bool:
        """Return whether a rule's findings are left out wherever they are."""
        return rule in self.ignore or bool(self.select and rule not in self.select)


def leave_out(d: Diagnosis, choice: RuleChoice) -> Diagnosis:
    """Return the diagnosis without the findings that options or comments leave out, which it then holds as ignored."""
    notes: dict[str, None] = {}
    ignored = tuple(_ignored(d.findings, choice, notes))
    after = leave_out(d.after, choice) if d.after is not None else None
    if not ignored:
        return replace(d, after=after, trust=(*d.trust, *map(Note, notes))) if notes or after is not d.after else d
    out = [one.finding for one in ignored]
    left = [finding for finding in d.findings if finding not in out]
    rules = {finding.rule for finding in left}
    prescriptions = tuple(p for p in d.prescriptions if p.rule in rules)
    gone = {p.id for p in d.prescriptions} - {p.id for p in prescriptions}
    shown = replace(
        d,
        findings=tuple(left),
        prescriptions=prescriptions,
        also_possible=tuple(p for p in d.also_possible if p.rule in rules),
        waterfall=None if d.waterfall and any(gone & set(f.ids) for f in d.waterfall.forecasts) else d.waterfall,
        ranks=tuple(replace(r, dominant=None) if choice.leaves_out(r.dominant or "") else r for r in d.ranks),
        after=after,
        ignored=ignored,
        trust=(*d.trust, *map(Note, notes)),
    )
    return shown if d.dominant in rules else _with_new_answer(shown)


def _with_new_answer(d: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the most valuable of the findings that are left as its answer."""
    largest = answering(d.findings, d.step_ns, has_device=d.queue is not None)
    return with_words(replace(d, dominant=largest.rule if largest is not None else None))


def _ignored(findings: Sequence[Finding], choice: RuleChoice, notes: dict[str, None]) -> Iterator[IgnoredFinding]:
    for finding in findings:
        if choice.leaves_out(finding.rule):
            yield IgnoredFinding(finding, "option")
            continue
        place = finding.where[0] if finding.where else None
        named = list(_rules_in_comments(place)) if place is not None else []
        for name in named:
            if place is not None and name not in _rules():
                hint = _hint(name)
                notes[f"The comment at {_place(place)} ignores an unknown rule '{one_line(name)}'{hint}."] = None
        if finding.rule in named:
            yield IgnoredFinding(finding, "comment")


def _rules_in_comments(place: Where) -> Iterator[str]:
    """Yield the ids in the comments of a line and of the line above it; the source may have changed since."""
    texts = [place.code] if place.code else []
    lines = _source(place.file) if place.file and place.line else []
    if place.line and 0 < place.line <= len(lines) and place.code in {None, "", lines[place.line - 1].strip()}:
        texts.append(lines[place.line - 1])
        above = lines[place.line - 2].strip() if place.line > 1 else ""
        texts += [above] if above.startswith("#") else []
    found = (match for text in dict.fromkeys(texts) for match in COMMENT.finditer(text))
    yield from dict.fromkeys(_today(name) for match in found for name in match[1].split(","))


def _source(file: str) -> list[str]:
    """Return the lines of a Python file that is on this machine, none where it is not."""
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_SOURCE_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _place(where: Where) -> str:
    return one_line(f"{Path(where.file or '').name}:{where.line}")


def _known(names: Iterable[str], option: str) -> Iterator[str]:
    for name in (part.strip() for text in names for part in text.split(",")):
        wanted = _today(name.lower())
        if wanted in _rules():
            yield wanted
        elif name:
            hint = _hint(wanted) or ", diagnose explain lists all of them"
            raise UsageError(f"Unknown rule '{one_line(name)}' of {option}{hint}.")


def _rules() -> Mapping[str, RuleMeta]:
    from diagnose.analyzers import META  # few findings have such a comment, and all rules take a moment to import

    return META


def _today(name: str) -> str:
    """Return the id of a rule, for that of a rule which is gone the one that names the same."""
    from diagnose.analyzers import FORMER

    wanted = name.strip().replace("_", "-")
    return FORMER.get(wanted, wanted)


def _hint(name: str) -> str:
    import difflib  # few ids are wrong

    similar = difflib.get_close_matches(name, _rules(), n=1, cutoff=SIMILAR)
    return f": the nearest is {similar[0]}" if similar else ""

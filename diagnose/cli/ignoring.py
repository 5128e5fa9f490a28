"""Leaves out findings that the user does not want to see: by the id of their rule, or by a comment in the program.

A comment ``# diagnose: ignore=host-sync`` on the line that a finding names first, or on a line of its own above it,
leaves that finding out. Nothing is calculated anew: partition, causes, kernels and savings stay as they are, and the
diagnosis holds what was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.answer import answering
from diagnose.answer.screen import with_words
from diagnose.errors import UsageError
from diagnose.model.diagnosis import Diagnosis, Finding, IgnoredFinding
from diagnose.model.events import Note
from diagnose.model.locations import Where
from diagnose.text.plain_text import one_line

if TYPE_CHECKING:
    from diagnose.model.rules import RuleMeta

# Rules that are gone: options and comments may still name them.
GONE = frozenset({"imbalanced-devices", "interpreter-contention", "page-faults"})
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
    d = replace(
        d,
        after=leave_out(d.after, choice) if d.after is not None else None,
        trust=(*d.trust, *map(Note, notes)),
        ignored=ignored or d.ignored,
    )
    if not ignored:
        return d
    out = [one.finding for one in ignored]
    left = tuple(finding for finding in d.findings if finding not in out)
    rules = {finding.rule for finding in left}
    gone = {p.id for p in d.prescriptions if p.rule not in rules}
    forecasts = d.waterfall.forecasts if d.waterfall is not None else ()
    shown = replace(
        d,
        findings=left,
        prescriptions=tuple(p for p in d.prescriptions if p.rule in rules),
        also_possible=tuple(p for p in d.also_possible if p.rule in rules),
        waterfall=None if any(gone & {*f.ids} for f in forecasts) else d.waterfall,
        ranks=tuple(replace(r, dominant=None) if choice.leaves_out(r.dominant or "") else r for r in d.ranks),
    )
    if d.dominant not in rules:
        largest = answering(left, d.step_ns, has_device=d.queue is not None)
        shown = replace(shown, dominant=largest.rule if largest is not None else None)
    return with_words(shown)


def _ignored(findings: Sequence[Finding], choice: RuleChoice, notes: dict[str, None]) -> Iterator[IgnoredFinding]:
    for finding in findings:
        if choice.leaves_out(finding.rule):
            yield IgnoredFinding(finding, "option")
            continue
        for place in finding.where[:1]:
            named = _rules_in_comments(place)
            at = one_line(f"{Path(place.file or '').name}:{place.line}")
            unknown = (name for name in named if name not in _rules() and name not in GONE)
            notes |= dict.fromkeys(
                f"The comment at {at} ignores an unknown rule '{one_line(name)}'{_hint(name)}." for name in unknown
            )
            if finding.rule in named:
                yield IgnoredFinding(finding, "comment")


def _rules_in_comments(place: Where) -> list[str]:
    """Return the ids in the comments of a line and of the line above it; the source may have changed since."""
    texts, line, lines = [place.code or ""], place.line or 0, list[str]()
    with suppress(OSError, ValueError):  # the file is elsewhere
        if (place.file or "").endswith(".py"):
            lines = Path(place.file or "").read_text(encoding="utf-8", errors="replace").splitlines()
    if 0 < line <= len(lines) and place.code in {None, "", lines[line - 1].strip()}:
        texts += [lines[line - 1], *(above for above in lines[max(line - 2, 0) : line - 1] if above.strip()[:1] == "#")]
    found = (match for text in dict.fromkeys(texts) for match in COMMENT.finditer(text))
    return [*dict.fromkeys(_id(name) for match in found for name in match[1].split(","))]


def _known(names: Iterable[str], option: str) -> Iterator[str]:
    for name in (part.strip() for text in names for part in text.split(",")):
        wanted = _id(name.lower())
        if wanted in _rules() or wanted in GONE:
            yield wanted
        elif name:
            hint = _hint(wanted) or ", diagnose explain lists all of them"
            raise UsageError(f"Unknown rule '{one_line(name)}' of {option}{hint}.")


def _rules() -> Mapping[str, RuleMeta]:
    from diagnose.analyzers import META  # few findings have such a comment, and all rules take a moment to import

    return META


def _id(name: str) -> str:
    """Return the id of a rule, of which the name of its file is another spelling."""
    return name.strip().replace("_", "-")


def _hint(name: str) -> str:
    import difflib  # few ids are wrong

    similar = difflib.get_close_matches(name, _rules(), n=1)
    return f": the nearest is {similar[0]}" if similar else ""

"""What a run came to: counts, defects grouped by origin, the slowest and the largest mutant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fuzzing.worker import Result

__all__ = ["Summary"]

BEGIN, END = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
MAX_EXAMPLES = 3


@dataclass
class Summary:
    """Adds up results."""

    seed: int
    jobs: int
    mutants: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    defects: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: Result | None = None
    largest: Result | None = None
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Count one result."""
        self.mutants[result.kind] += 1
        self.codes[str(result.code)] += 1
        for problem in result.problems:
            self.counts[problem] += 1
            examples = self.defects.setdefault(problem, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(result)
        if self.slowest is None or result.seconds > self.slowest.seconds:
            self.slowest = result
        if self.largest is None or result.rss_mb > self.largest.rss_mb:
            self.largest = result

    @property
    def failed(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.defects)

    def lines(self) -> Iterator[str]:
        """Yield the summary for a terminal."""
        total = sum(self.mutants.values())
        rate = total / self.seconds if self.seconds else 0.0
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.mutants.items()))
        yield f"{total} mutants ({kinds}), seed {self.seed}, {self.jobs} processes, {self.seconds:.0f} s, {rate:.1f}/s"
        yield "exit codes: " + ", ".join(f"{code} × {count}" for code, count in self.codes.most_common())
        for title, result in (("slowest", self.slowest), ("largest memory", self.largest)):
            if result:
                yield f"{title}: {result.kind} {result.index}, {result.seconds:.2f} s, {result.rss_mb:.0f} MB"
        for (kind, details), count in self.counts.most_common():
            yield f"{count:6} {kind}: {details}"
            for result in self.defects[kind, details]:
                what = " · ".join(result.what)[:120]
                yield f"         {result.kind}:{result.index}  diagnose {' '.join(map(ascii, result.argv))}   [{what}]"
        yield f"{len(self.defects)} defects" if self.defects else "no traceback, no hang, no broken promise"

    def table(self) -> str:
        """Return the summary as Markdown, between the marks under which it is kept in a page."""
        total = sum(self.mutants.values())
        tracebacks = sum(count for (kind, _), count in self.counts.items() if kind in ("traceback", "rule failed"))
        hangs = sum(count for (kind, _), count in self.counts.items() if kind in ("hang", "too slow", "process ended"))
        slowest = self.slowest.seconds if self.slowest else 0.0
        largest = self.largest.rss_mb if self.largest else 0.0
        rows = [
            ("mutants", f"{total} ({', '.join(f'{n} {kind}' for kind, n in sorted(self.mutants.items()))})"),
            ("seed, processes", f"{self.seed}, {self.jobs}"),
            ("rate", f"{total / self.seconds:.0f} mutants a second" if self.seconds else ""),
            ("exit codes", ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))),
            ("tracebacks", str(tracebacks)),
            ("hangs, processes that died", str(hangs)),
            ("other broken promises", str(sum(self.counts.values()) - tracebacks - hangs)),
            ("slowest mutant", f"{slowest:.1f} s (bar: 20 s)"),
            ("largest memory", f"{largest:.0f} MB (bar: 1000 MB)"),
        ]
        lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
        return "\n".join((BEGIN, *lines, END))

    def write_table(self, page: str) -> str:
        """Return a page with its table replaced."""
        before, found, rest = page.partition(BEGIN)
        _, ended, after = rest.partition(END)
        if not found or not ended:
            raise ValueError(f"the page holds no place for the table: {BEGIN} and {END}")
        return before + self.table() + after

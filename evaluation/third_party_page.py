"""The rows of evaluation/third_party and the page that they make."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from third_party_proof import OPEN, RIGHT, WRONG

COLUMNS = ("steps", "phases", "dominant", "line", "advice", "applies", "runs", "prove", "saves", "harmless")
SHORT_MS = 100.0  # the median time to an answer is of scripts with steps shorter than this


@dataclass(frozen=True)
class Row:
    """The score of one script; a column is ``yes``, ``no``, or ``n/a`` where it does not apply."""

    name: str
    waste: str
    found: str = ""  # the dominant finding and its line
    step_ms: float = 0.0
    answer_s: float = 0.0  # from the command to the answer; it rests on what else the machine does
    remark: str = ""  # why a column is wrong, or why the script was not run
    steps: str = OPEN
    phases: str = OPEN
    dominant: str = OPEN
    line: str = OPEN
    advice: str = OPEN
    applies: str = OPEN
    runs: str = OPEN
    prove: str = OPEN
    saves: str = OPEN
    harmless: str = OPEN

    @property
    def wrong(self) -> tuple[str, ...]:
        """Return the columns that are wrong."""
        return tuple(column for column in COLUMNS if getattr(self, column) == WRONG)


def page(rows: Iterable[Row]) -> str:
    """Return pages/third-party.md."""
    rows = list(rows)
    head = ["# Scripts as users write them", "", INTRODUCTION, "", "Made by `evaluation/third_party --write`.", ""]
    head += [f"| script | {' | '.join(COLUMNS)} | answer | found | remark |", "|---|" + "---|" * (len(COLUMNS) + 3)]
    for row in rows:
        cells = " | ".join(getattr(row, column) for column in COLUMNS)
        head.append(f"| {row.name} | {cells} | {row.answer_s:.0f} s | {row.found} | {row.remark.replace('|', '¦')} |")
    totals = []
    for column in COLUMNS:
        scored = [value for row in rows if (value := getattr(row, column)) != OPEN]
        totals.append(f"{scored.count(RIGHT)} of {len(scored)}" if scored else OPEN)
    found = [row for row in rows if row.found]
    right = sum(not row.wrong for row in found)
    short = [row.answer_s for row in found if row.step_ms < SHORT_MS]
    median = f"median {statistics.median(short):.0f} s" if short else OPEN
    head.append(f"| **right** | {' | '.join(totals)} | {median} | {right} of {len(found)} throughout | |")
    return "\n".join(head) + "\n"


INTRODUCTION = """Each script of `evaluation/third_party_scripts` is written in the manner of a well-known kind of
training script, with a waste planted or none, and the truth about it stands in `catalogue.py` beside it: how many
optimizer calls and operators a step has, its phases, the rules that may be dominant, the exact line, and changes that
would be wrong. `evaluation/third_party` traces each as a user would and compares. A column is `n/a` where it does not
apply: `line` where nothing is planted, `applies` and `runs` (the printed diff, applied, and the script after it) where
no diff is printed, `phases` where they were not measured. `diagnose prove` has 90 s for each script, and 5 minutes
for `hf_trainer`, whose model takes longer to compile:
`prove` is whether it tried a change (`n/a` where only the author can make one, or where the script starts its ranks
itself), `saves` whether every measured saving can lie within the range that its report states, and `harmless` whether
no change made steps longer for certain. `answer` is the time from the command to its answer; its median is that of
the scripts whose steps take less than 100 ms."""

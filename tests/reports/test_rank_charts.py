"""The charts of a job: who is late, who comes last to which collective, and whose view a report is."""

import re
from dataclasses import replace

from diagnose.model.job import Job, RankRow
from diagnose.reports.answer import answer
from diagnose.reports.headline import shown_rank
from diagnose.reports.html import render
from diagnose.reports.rank_charts import arrival_chart, job_sentences

MS = 1_000_000
ROWS = (
    RankRow(3, 4.0 * MS, (4.0 * MS,), 0.9, 0.0, (0.0, 0.0, None)),
    RankRow(0, 0.0, (0.0,), 0.0, 0.0, (5.0 * MS, 1.0 * MS, 0.0)),
)
LATE = Job(
    4, 12, 0.0, (7,), ROWS, ("all_reduce", "all_reduce", "all_gather"), (3,), 4.0 * MS, 3.0 * MS, "data-stall",
    cause_share=0.8,
)  # fmt: skip


def test_the_late_rank_is_named_with_its_cause():
    assert list(job_sentences(LATE)) == [
        "Rank 3 is late in most steps, by 4.00 ms, 80.0 % of it data-stall.",
        "A step would be 3.00 ms shorter with it no later.",
    ]
    turns = replace(LATE, late_ranks=(), taking_turns=(1, 2))
    assert list(job_sentences(turns)) == ["Ranks 1, 2 are late in turns: a step waits 3.00 ms."]


def test_the_last_to_arrive_is_marked():
    chart = str(arrival_chart(LATE))
    assert re.findall(r">rank (\d)</text>", chart) == ["0", "3"]
    assert chart.count('<path d="M90.0,40.0') == 1  # rank 3, below rank 0, came last to the first collective
    assert "up to 5.00 ms" in chart
    assert arrival_chart(replace(LATE, arrivals=())) is None


def test_a_report_of_several_ranks_states_whose_view_it_is(forms):
    d = forms["ranks"]
    shown = replace(d, job=LATE, step_ns=d.ranks[3].step_ns, partition=d.ranks[3].partition)
    assert shown_rank(shown) == 3
    assert "Everything else in this report is rank 3's, which the others wait for." in render(shown)
    assert "is rank 3's, the slowest." in render(replace(shown, job=replace(LATE, late_ranks=())))


def test_a_rank_that_begins_late_is_the_headline(forms):
    d = forms["ranks"]
    found = replace(d.findings[0], rule="straggler", title="58 % of the waiting is in the first collective: rank 7 …")
    job = replace(LATE, late_ranks=(), begins_late=7, begins_late_ns=4.52 * MS)
    shown = replace(d, dominant="straggler", findings=(found,), job=job)
    assert answer(shown).headline == "The ranks wait for rank 7, which begins its step 4.52 ms late"

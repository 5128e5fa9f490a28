"""The charts of a job: who is late, who comes last to which collective, and whose view a report is."""

import re
from dataclasses import replace

from diagnose.answer.screen import shown_rank
from diagnose.model.diagnosis import RankSummary
from diagnose.model.job import AlignedCollective, AlignedRank, AlignedStep, Job, RankRow
from diagnose.reports.charts import legible
from diagnose.reports.html import render
from diagnose.reports.job_words import job_sentences, worst_first
from diagnose.reports.json import to_dict
from diagnose.reports.language import language
from diagnose.reports.rank_charts import aligned_chart, arrival_chart, lateness_chart
from diagnose.reports.text import render as text_report

MS = 1_000_000
ROWS = (
    RankRow(3, 4.0 * MS, (4.0 * MS,), 0.9, 0.0, (0.0, 0.0, None)),
    RankRow(0, 0.0, (0.0,), 0.0, 0.0, (5.0 * MS, 1.0 * MS, 0.0)),
)
LATE = Job(
    4, 12, 0.0, (7, 8), ROWS, ("all_reduce", "all_reduce", "all_gather"), (3,), 4.0 * MS, 3.0 * MS, "data-stall",
    cause_share=0.8, num_late=2,
)  # fmt: skip


def test_the_late_rank_is_named_with_its_cause():
    assert list(job_sentences(LATE)) == [
        "Rank 3 is late in 2 of 2 steps, by 4.00 ms, 80.0 % of it data-stall.",
        "A step would be 3.00 ms shorter with it no later.",
    ]
    turns = LATE._replace(late_ranks=(), taking_turns=(1, 2))
    assert list(job_sentences(turns)) == ["Ranks 1, 2 take turns being late: a step waits 3.00 ms."]


def test_nothing_is_said_of_who_is_late_where_nothing_was_compared():
    nobody = LATE._replace(late_ranks=(), rows=(ROWS[1]._replace(late_ns=0.0),))
    waiting = "Ranks wait 3.00 ms a step for others, in the mean; 0 % of it is for rank 0."
    assert list(job_sentences(nobody)) == [waiting]
    assert list(job_sentences(nobody._replace(saved_ns=0.0))) == ["No rank waits for another one."]
    unmatched = "1 collective could not be compared between ranks; who is late there is not known."
    assert list(job_sentences(nobody._replace(num_unmatched=1))) == [waiting, unmatched]
    assert list(job_sentences(nobody._replace(num_collectives=0))) == []
    assert list(job_sentences(nobody._replace(rows=(ROWS[0]._replace(late_ns=None),)))) == []


def test_of_one_step_the_report_says_no_more_than_that_was_seen():
    one = LATE._replace(steps=(7,))
    seen = "late in the recorded step"
    assert next(job_sentences(one)) == f"Rank 3 is {seen}, by 4.00 ms, 80.0 % of it data-stall."
    assert next(job_sentences(one._replace(late_ranks=(1, 3)))).startswith(f"Ranks 1, 3 are {seen}, by 4.00 ms")
    waiting = "Ranks wait 3.00 ms a step for others, in the mean; 90 % of it is for rank 3."
    assert list(job_sentences(one._replace(late_ranks=()))) == [waiting]


def test_the_report_says_how_many_rows_the_json_holds(forms):
    d = job_of_36(forms, num_rows=36)
    words = "Lateness in each step it has of the 3 worst of 36 ranks, the worst first."
    assert words in " ".join(text_report(d).split())
    assert to_dict(d)["job"]["rows_of"] == 36
    assert words not in " ".join(text_report(job_of_36(forms, num_rows=3)).split())


def test_timelines_show_who_comes_last_and_where_the_others_wait(forms):
    moved = AlignedCollective("ddp-bucket", 8.0 * MS, 0.0, 2.0 * MS)
    waited = AlignedCollective("ddp-bucket", 2.0 * MS, 6.0 * MS, 2.0 * MS)
    late = AlignedRank(3, "late", 0.0, 10.0 * MS, (("data-stall", 6.0 * MS),), (moved,), 1)
    fast = AlignedRank(0, "fastest", 0.0, 10.0 * MS, (), (waited,), 4)
    step = AlignedStep(7, (late, fast))
    chart = str(aligned_chart(step))
    assert "Step 7 on one clock: rank 3 (late), rank 0 (fastest)." in chart
    assert "loses data-stall 6.00 ms" in chart
    assert "the 1 longest of 4 collectives" in chart
    assert "ddp-bucket: waits 6.00 ms, transfer 2.00 ms" in chart
    boxes = re.findall(r'<path d="M([\d.]+),([\d.]+)h([\d.]+)v', chart)
    # late: transfer from 8 to 10 ms, marked as last; fastest: waiting from 2 to 8 ms, then the same transfer
    assert boxes == [
        ("854.8", "16.0", "191.2"), ("854.8", "16.0", "3.0"), ("281.2", "82.0", "573.6"), ("854.8", "82.0", "191.2"),
    ]  # fmt: skip
    d = replace(forms["ranks"], job=LATE._replace(aligned=step))
    assert 'id="aligned"' in render(d)
    assert 'id="aligned"' not in render(replace(d, job=LATE))


def job_of_36(forms, **fields):
    """Ranks 3 and 17 are late, and their own steps the shortest; rank 20 is next, then 35 of the longest step."""
    ranks = tuple(
        RankSummary(r, "gaps", None, (10 if r in (3, 17) else 20 + r / 10) * MS, None, {}, 1.0 * MS) for r in range(36)
    )
    rows = tuple(RankRow(r, late * MS, (late * MS, 0.0), 0.0, 0.0) for r, late in ((17, 5.0), (3, 4.0), (20, 0.1)))
    job = Job(36, 12, 0.0, (7, 8), rows, late_ranks=(3, 17), late_ns=4.0 * MS, saved_ns=3.0 * MS, num_late=2)
    return replace(forms["ranks"], ranks=ranks, job=job._replace(**fields))


def listed(text):
    """Return the ranks of the text report's table."""
    return [int(n) for n in re.findall(r"^ +(\d+)  +[\d.]+ ms  gaps ", text, re.MULTILINE)]


def test_tables_of_ranks_begin_with_the_worst_and_hold_the_late_ones(forms):
    d = job_of_36(forms)
    text, page = text_report(d), render(d)
    assert listed(text) == [17, 3, 20, *range(35, 22, -1)]
    rows = [int(n) for n in re.findall(r'<th scope="row" class="number">(\d+)</th>', page)]
    assert rows == [17, 3, 20, *(r for r in range(35, 4, -1) if r not in (17, 20))]
    first = "late ones first, then by how late they are; the JSON holds all of them."
    assert f"16 of 36 ranks: {first}" in " ".join(text.split())
    assert f"32 of 36 ranks: {first}" in page


def test_without_a_comparison_the_slowest_are_listed_and_the_report_says_so(forms):
    d = replace(job_of_36(forms), job=None)
    assert listed(text_report(d)) == list(range(35, 19, -1))
    assert "The 16 slowest of 36 ranks; the JSON holds all of them." in text_report(d)
    assert "The 32 slowest of 36 ranks; the JSON holds all of them." in render(d)


def test_no_late_rank_is_left_out_however_many_they_are(forms):
    d = job_of_36(forms, rows=(), late_ranks=(1, 2, 5, 6))
    assert [r.rank for r in worst_first(d, 2)] == [6, 5, 2, 1]
    assert "slowest of" not in text_report(replace(d, ranks=d.ranks[:16]))


def test_the_text_report_says_what_the_comparison_found_above_its_table(forms):
    text = " ".join(text_report(job_of_36(forms)).split())
    said = "Ranks 3, 17 are late in 2 of 2 steps, by 4.00 ms; no recorded cause explains it."
    assert text.index(said) < text.index("17 10.0 ms gaps")
    nobody = " ".join(text_report(job_of_36(forms, late_ranks=())).split())
    assert nobody.index("Ranks wait ") < nobody.index("17 10.0 ms gaps")


def test_the_headline_names_the_late_rank_in_each_language(forms):
    d = replace(job_of_36(forms, late_ranks=(3,), cause="data-stall"), dominant="data-stall")
    title = "The step waits for the DataLoader's workers"
    d = replace(d, findings=(replace(d.findings[0], title=title), *d.findings[1:]))
    for shown in (text_report(d), render(d)):
        assert "Rank 3 is late: the step waits for the" in " ".join(shown.split()).replace("&#39;", "'")
    with language("zh"):
        assert "rank 3 迟到：每步" in text_report(d)
        assert "rank 3 和 17 迟到：每步" in render(replace(d, job=d.job._replace(late_ranks=(3, 17))))


def test_lateness_has_a_row_of_steps_for_each_rank_the_worst_first(forms):
    late = RankRow(3, 4.0 * MS, (4.0 * MS, 0.5 * MS, None), 0.9, 0.0)
    early = RankRow(0, 0.0, (-1.0 * MS, 2.0 * MS, 0.0), 0.0, 0.0)
    job = LATE._replace(rows=(late, early), steps=(7, 8, 9))
    chart = str(lateness_chart(job, 20.0 * MS))
    assert "Lateness of 2 ranks in each of 3 steps, the worst first; late: 3." in chart
    assert re.findall(r">rank (\d)</text>", chart) == ["3", "0"]
    assert re.findall(r'text-anchor="middle">(\d)</text>', chart) == ["7", "8", "9"]
    cells = re.findall(r'<path d="M([\d.]+),([\d.]+)h[^"]*" fill="#[0-9a-f]+" fill-opacity="([\d.]+)"', chart)
    assert cells == [("408.67", "0.0", "0.2"), ("90.00", "0.0", "1.0"), ("408.67", "18.0", "0.6")]  # of one scale
    assert "up to 4.00 ms" in chart
    assert 'id="lateness"' in render(replace(forms["ranks"], job=job))


def test_lateness_of_one_step_or_within_the_noise_is_not_drawn(forms):
    one = LATE._replace(steps=(7,))
    assert lateness_chart(one, 20.0 * MS) is None
    assert 'id="lateness"' not in render(replace(forms["ranks"], job=one))
    rows = (RankRow(3, 0.0, (0.1 * MS, 0.0), 0.0, 0.0),)
    assert lateness_chart(LATE._replace(rows=rows, steps=(7, 8)), 20.0 * MS) is None


def test_lateness_of_many_ranks_and_steps_stays_small():
    rows = tuple(RankRow(r, 1.0 * MS, (1.0 * MS,) * 999 + (5.0 * MS,), 0.0, 0.0) for r in range(64))
    chart = str(lateness_chart(LATE._replace(rows=rows, steps=tuple(range(1000))), 20.0 * MS))
    assert len(re.findall(r">rank \d+</text>", chart)) == 24
    assert len(chart) < 300_000
    assert chart.count('fill-opacity="1.0"') == 24  # of the five steps in the last column the latest counts


def test_the_last_to_arrive_is_marked():
    chart = str(arrival_chart(LATE))
    assert re.findall(r">rank (\d)</text>", chart) == ["0", "3"]
    red = re.findall(rf'd="([^"]*)" fill="{legible("#d0454c")}"', chart)
    assert [box.count("M90.0,40.0") for box in red] == [1]  # rank 3, below rank 0, came last to the first collective
    assert "up to 5.00 ms" in chart
    assert arrival_chart(LATE._replace(arrivals=())) is None


def test_a_report_of_several_ranks_states_whose_view_it_is(forms):
    d = forms["ranks"]
    shown = replace(d, job=LATE, step_ns=d.ranks[3].step_ns, partition=d.ranks[3].partition)
    assert shown_rank(shown) == 3
    assert "Everything else in this report is rank 3's, which the others wait for." in render(shown)
    assert "is rank 3's, the slowest." in render(replace(shown, job=LATE._replace(late_ranks=())))

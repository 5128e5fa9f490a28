"""Simulated jobs of several ranks: what is planted is found, with what it costs, and a replay predicts that."""

from dataclasses import replace

import pytest
from simulation.job_files import write_job
from simulation.job_plans import HOST_BOUND, MS, REASONS, draw_plan
from simulation.job_scoring import MAX_OFF, expected, score_job, table_of
from simulation.jobs import run_job
from simulation.pipelines import Pipeline, run_pipeline

from diagnose.errors import UsageError
from diagnose.pipeline.run import analyze_paths
from diagnose.pipeline.what_if import WhatIfRequest, run_what_if

MEGABYTE = 1 << 20


def small(reason, seed=1):
    """Return the first plan of the seed with at most eight ranks."""
    return next(plan for n in range(50) if (plan := draw_plan(seed, n, reason)).num_ranks <= 8)


@pytest.mark.parametrize("reason", REASONS)
def test_what_is_planted_is_found_and_nothing_else(reason):
    score = score_job(small(reason))
    assert (score.late_right, score.reason_right) == (True, True), (score.who, expected(score.plan))
    assert score.off <= MAX_OFF or reason in HOST_BOUND  # hosts vary, and those that wait get ahead meanwhile


@pytest.mark.parametrize("reason", ["slow-host", "contention"])
def test_a_host_that_waits_for_its_device_each_step_is_slower_by_what_is_planted(reason):
    """The other hosts get ahead within a step, when they launch the optimizer while their devices wait."""
    plan = replace(draw_plan(3, 0, reason), num_ranks=2, split=1, members=(), rank=1, num_steps=8, num_layers=8)
    plan = replace(plan, layer_ns=0.04 * MS, host_ns=0.1 * MS, bus_gbps=90.0, loader_ns=0.5 * MS, num_buckets=3)
    score = score_job(replace(plan, reads_loss=True))
    assert (score.late_right, score.reason_right) == (True, True)
    assert score.off <= MAX_OFF
    assert score.planted_ns == pytest.approx(score.costs_ns, rel=0.1)


@pytest.mark.parametrize("split", [1, 2])
def test_a_pause_right_behind_a_bucket_costs_what_a_replay_without_it_saves(tmp_path, split):
    plan = replace(draw_plan(1, 0, "backward-pause"), num_ranks=4, split=split, num_layers=6, num_buckets=3, rank=2)
    plan = replace(plan, layer_ns=0.6 * MS, host_ns=0.02 * MS, pause_ns=12 * MS, pause_layer=4, num_steps=6)
    run = run_job(replace(plan, reads_loss=True, bus_gbps=90.0))
    write_job(run, tmp_path)
    straggler = next(f for f in analyze_paths([tmp_path]).findings if f.rule == "straggler")
    assert straggler.facts["late_rank"] == 2
    assert straggler.facts["cause_ms"] == pytest.approx(run.planted_ns / 1e6, rel=MAX_OFF)
    assert straggler.lost_ns == pytest.approx(run.costs_ns, rel=MAX_OFF)


@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        (Pipeline(3, late=3, slower=1.2), "slower-device"),
        (Pipeline(3, late=0, slower=1.2, num_stages=2), "slower-device"),
        (Pipeline(3, late=0, loads_more_ns=6 * MS, num_replicas=4), "data-stall"),
    ],
)
def test_a_late_stage_is_found_for_which_a_few_ranks_wait(tmp_path, plan, cause):
    run = run_pipeline(plan)
    write_job(run, tmp_path)
    straggler = next(f for f in analyze_paths([tmp_path]).findings if f.facts.get("kind") == "late")
    assert (straggler.facts["late_rank"], straggler.facts["cause"]) == (plan.late, cause)
    assert straggler.facts["cause_ms"] == pytest.approx(run.planted_ns / 1e6, rel=MAX_OFF)
    assert straggler.lost_ns == pytest.approx(run.costs_ns, rel=MAX_OFF)


@pytest.mark.parametrize("late", [-1, 3])
def test_what_a_stage_does_while_the_one_before_it_is_not_done_makes_nobody_wait(tmp_path, late):
    """The second stage begins its step before the first one has done the last, and loads meanwhile."""
    run = run_pipeline(Pipeline(3, late=late, loads_more_ns=6 * MS))
    assert run.costs_ns < 0.001 * run.step_ns
    write_job(run, tmp_path)
    assert [f for f in analyze_paths([tmp_path]).findings if f.facts.get("kind") == "late"] == []


def test_the_same_plan_runs_the_same():
    plan = small("loader-5")
    assert run_job(plan).logs == run_job(plan).logs
    assert run_job(plan).planted_ns == pytest.approx(5e6, rel=0.1)
    assert run_job(plan).costs_ns == pytest.approx(5e6, rel=0.1)


def test_the_answer_names_the_rank_and_a_replay_of_all_ranks_what_it_costs(tmp_path):
    plan = small("loader-5")
    run = run_job(plan)
    write_job(run, tmp_path)
    answer = analyze_paths([tmp_path])
    assert answer.headline.startswith(f"Rank {plan.rank} is late: ")
    assert answer.source.path.endswith(f"rank{plan.rank}.pt.trace.json")
    assert answer.dominant == "data-stall"
    forecast = run_what_if(tmp_path, WhatIfRequest(without=("straggler",)))
    assert forecast.baseline_ns - forecast.after_ns == pytest.approx(run.costs_ns, rel=0.05)
    assert forecast.forecasts[-1].title == f"rank {plan.rank} as the others of its role"


def test_the_share_of_the_waiting_is_by_its_cause_and_not_by_who_came_last(tmp_path):
    plan = replace(small("loader-5"), num_ranks=8, split=4, rank=5, num_steps=6, records_groups=True)
    write_job(run_job(plan), tmp_path)
    blame = {row.rank: row.blame_share for row in analyze_paths([tmp_path]).job.rows}
    assert blame[5] > 0.95


def test_what_a_change_takes_away_already_is_not_taken_once_more_with_the_late_rank(tmp_path):
    plan = small("loader-5")
    run = run_job(plan)
    write_job(run, tmp_path)
    both = run_what_if(tmp_path, WhatIfRequest(without=("data-stall", "straggler")))
    one, other = (run_what_if(tmp_path, WhatIfRequest(without=(rule,))) for rule in ("data-stall", "straggler"))
    assert both.after_ns == pytest.approx(min(one.after_ns, other.after_ns), rel=0.02)
    computing = plan.num_layers * plan.layer_ns * 3.08  # a forward and two products of the backward, and a little more
    assert both.after_ns > computing


def test_a_late_rank_that_is_not_there_cannot_be_taken_away(tmp_path):
    write_job(run_job(small("nothing")), tmp_path)
    with pytest.raises(UsageError, match="No rank is late"):
        run_what_if(tmp_path, WhatIfRequest(without=("straggler",)))


def rebucketed(reason="nothing", *, num_buckets, **changed):
    """Return a job of four ranks with 48 MB of gradients in so many buckets."""
    plan = replace(small(reason), num_ranks=4, rank=1, split=1, num_layers=12, layer_ns=0.5 * MS, bus_gbps=10.0)
    plan = replace(plan, host_ns=0.02 * MS, num_buckets=num_buckets, bucket_bytes=48 * MEGABYTE // num_buckets)
    return replace(plan, num_steps=6, records_groups=True, **changed)


@pytest.mark.parametrize(("before", "after", "split"), [(4, 1, 1), (1, 4, 1), (2, 6, 2), (6, 2, 2)])
def test_buckets_of_another_size_take_what_a_job_with_them_takes(tmp_path, before, after, split):
    now, then = (run_job(rebucketed(num_buckets=n, split=split)) for n in (before, after))
    write_job(now, tmp_path)
    answer = run_what_if(tmp_path, WhatIfRequest(bucket_mb=48 * 1.03 / after))
    assert answer.forecasts[-1].title.endswith("on 4 ranks")
    assert answer.after_ns / answer.baseline_ns == pytest.approx(then.step_ns / now.step_ns, abs=0.03)


def test_exchanges_that_the_backward_waits_for_are_overlapped(tmp_path):
    now, then = (run_job(rebucketed(num_buckets=4, waits_for_buckets=waits)) for waits in (True, False))
    write_job(now, tmp_path)
    answer = run_what_if(tmp_path, WhatIfRequest(overlap=("all_reduce",)))
    assert then.step_ns < 0.9 * now.step_ns
    assert answer.after_ns / answer.baseline_ns == pytest.approx(then.step_ns / now.step_ns, abs=0.01)


def test_buckets_are_cut_after_the_late_rank_is_gone(tmp_path):
    now, then = run_job(rebucketed("loader-5", num_buckets=1)), run_job(rebucketed(num_buckets=4))
    write_job(now, tmp_path)
    answer = run_what_if(tmp_path, WhatIfRequest(without=("straggler",), bucket_mb=48 * 1.03 / 4))
    assert [f.title for f in answer.forecasts[1:]] == [
        "rank 1 as the others of its role",
        "gradient buckets of 12.36 MB on 4 ranks",
    ]
    assert answer.after_ns / answer.baseline_ns == pytest.approx(then.step_ns / now.step_ns, abs=0.02)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (WhatIfRequest(overlap=("all_gather",)), "No rank waits for an all_gather that .* Waited for: all_reduce"),
        (WhatIfRequest(overlap=("reduce_scatter",), bucket_mb=24), "No rank waits for a reduce_scatter"),
    ],
)
def test_what_nobody_waits_for_is_not_overlapped(tmp_path, request_, why):
    write_job(run_job(rebucketed(num_buckets=4)), tmp_path)
    with pytest.raises(UsageError, match=why):
        run_what_if(tmp_path, request_)


def test_of_one_rank_exchanges_are_not_overlapped(tmp_path):
    write_job(run_job(rebucketed(num_buckets=4)), tmp_path)
    with pytest.raises(UsageError, match="recording of one"):
        run_what_if(next(tmp_path.glob("*rank0*")), WhatIfRequest(overlap=("all_reduce",)))


def test_of_one_step_nothing_is_replayed(tmp_path):
    write_job(run_job(replace(rebucketed(num_buckets=4), num_steps=1)), tmp_path)
    with pytest.raises(UsageError, match=r"no two steps.*give the traces of all ranks"):
        run_what_if(tmp_path, WhatIfRequest(bucket_mb=24))


def test_the_table_has_a_row_for_each_reason():
    lines = table_of([score_job(small("nothing")), score_job(small("loader-2"))], 1)
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| loader-2", "| nothing", "| all of these but nothing"]

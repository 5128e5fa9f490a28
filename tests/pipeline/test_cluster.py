"""Work on a cluster: Dask's own, in processes of this machine, of which one is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from io import FileIO

import pytest

from diagnose.errors import InputError
from diagnose.pipeline.executors import connected, for_others
from diagnose.pipeline.job import Workers, analyze_inputs
from diagnose.pipeline.run import analyze_paths
from diagnose.reports.json import to_dict
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import RankFiles
from diagnose.trace_reader.stored import Piped
from tests.pipeline import working
from tests.trace_reader.test_inputs import trace_of

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


def test_a_worker_that_is_killed_costs_no_rank(scheduler, ranks, tmp_path):
    (tmp_path / "marks").mkdir()
    with connected(scheduler) as cluster:
        found = dict(cluster.run(working.dying_once(tmp_path / "marks"), ranks))
    assert {i: outcome.data for i, outcome in found.items()} == {i: b"%d" % i for i in range(5)}
    assert len(list((tmp_path / "marks").iterdir())) == 1


def test_a_job_whose_worker_is_killed_has_the_answer_of_one_process(scheduler, tmp_path, monkeypatch):
    monkeypatch.setattr("diagnose.pipeline.job.packed_both", partial(working.analysis_dying_once, tmp_path))
    path = "fixtures/captures/barrier_every_step"
    answer = analyze_inputs([path], workers=Workers(cluster=scheduler), progress=QUIET, draw=False)
    assert [mark.name for mark in tmp_path.iterdir()] == ["died"]
    assert to_dict(answer) == to_dict(analyze_paths([path]))


def test_a_job_on_a_cluster_has_the_answer_of_one_process(scheduler):
    path = "fixtures/captures/barrier_every_step"
    answer = analyze_inputs([path], workers=Workers(cluster=scheduler), progress=QUIET, draw=False)
    assert to_dict(answer) == to_dict(analyze_paths([path]))


def test_what_is_only_in_this_process_is_not_sent(tmp_path):
    (tmp_path / "t.json").write_bytes(trace_of(0))
    with (
        FileIO(tmp_path / "t.json") as file,
        pytest.raises(InputError, match="pipe is only here: a cluster cannot read a pipe"),
    ):
        for_others(RankFiles(None, Piped(file, b"", "pipe")))


def test_a_scheduler_that_does_not_answer():
    path = "fixtures/captures/barrier_every_step"
    with (
        pytest.raises(InputError, match=r"^The cluster at tcp://127\.0\.0\.1:9 does not answer"),
        connected("tcp://127.0.0.1:9", wait_s=0.5),
    ):
        pass
    with pytest.raises(InputError, match=r"absent\.json does not exist\. Name the file that dask scheduler"):
        analyze_inputs([path], workers=Workers(cluster="file:absent.json"), progress=QUIET, draw=False)


@pytest.mark.full
def test_a_scheduler_and_workers_under_slurm(tmp_path, monkeypatch):
    """srun is a script here, which starts its command twice, as it does for an allocation of two tasks."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\n"$@" & "$@" &\nwait\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    path = "fixtures/captures/barrier_every_step"
    answer = analyze_inputs([path], workers=Workers(cluster="slurm"), progress=QUIET, draw=False)
    assert to_dict(answer) == to_dict(analyze_paths([path]))

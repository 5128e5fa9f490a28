"""Work on a cluster: Dask's own, in processes of this machine, of which one is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diagnose.pipeline.cluster import connected
from diagnose.pipeline.executors import on_executor
from diagnose.text.progress import Progress
from tests.pipeline import working
from tests.pipeline.test_executors import ranks  # noqa: F401  # a fixture

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_a_worker_that_is_killed_costs_no_rank(scheduler, ranks, tmp_path):  # noqa: F811
    (tmp_path / "marks").mkdir()
    with connected(scheduler, QUIET) as cluster:
        found = dict(on_executor(cluster.executor, cluster.num_workers, working.dying_once(tmp_path / "marks"), ranks))
    assert {i: outcome.data for i, outcome in found.items()} == {i: b"%d" % i for i in range(5)}
    assert len(list((tmp_path / "marks").iterdir())) == 1

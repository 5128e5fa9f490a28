"""Which rank a process is, by the variables of torchrun, srun and mpirun."""

import pytest

from diagnose.capture.process import process as ranks
from diagnose.errors import UsageError
from diagnose.model.launched import Launched, launched

SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def test_without_a_launcher_there_is_one_rank():
    assert launched({}) == Launched(0, 1, 1)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, Launched(3, 8, 4)),
        (SRUN, Launched(5, 8, 4)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "3,5", "SLURM_NODEID": "1"}, Launched(5, 8, 5)),
        (MPIRUN, Launched(3, 4, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launched(1, 2, 2)),
        ({**SRUN, **MPIRUN}, Launched(3, 4, 2)),
        ({**SRUN, "RANK": "1", "WORLD_SIZE": "2"}, Launched(1, 2, 2)),  # torchrun within a step
    ],
)
def test_the_launcher_says_which_rank_this_is(environment, found):
    assert launched(environment) == found


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script: srun has started nothing
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"PMIX_RANK": "1"},
    ],
)
def test_what_is_alone_has_no_other_ranks(environment):
    assert launched(environment) == Launched(0, 1, 1)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"RANK": "first"}, "RANK, WORLD_SIZE, LOCAL_WORLD_SIZE must be integers"),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "Invalid RANK=8: use 0 to 7 for WORLD_SIZE=8"),
    ],
)
def test_what_cannot_be_a_rank_is_an_error(environment, why):
    with pytest.raises(UsageError, match=why):
        launched(environment)


def test_the_traced_process_reads_the_same(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert ranks.rank_and_size() == (5, 8)

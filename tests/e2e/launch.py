"""Starts a command as srun or mpirun starts the tasks of a job: python launch.py WORD NUM COMMAND…

WORD: "srun" (all tasks on one node), "apart" (srun, each task on a node of its own, in folders node0 and so on), or
"mpirun" (Open MPI's variables).
"""

import os
import subprocess
import sys
from pathlib import Path

word, num, *command = sys.argv[1:]
apart = word == "apart"
step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_NTASKS": num, "SLURM_STEP_NUM_TASKS": num}
step["SLURM_STEP_TASKS_PER_NODE"] = f"1(x{num})" if apart else num
if word == "mpirun":
    step = {"OMPI_COMM_WORLD_SIZE": num, "OMPI_COMM_WORLD_LOCAL_SIZE": num, "OMPI_MCA_ess_base_jobid": "71"}
tasks = []
for rank in range(int(num)):
    folder = Path(f"node{rank}" if apart else ".")
    folder.mkdir(exist_ok=True)
    node, local = (rank, 0) if apart else (0, rank)
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
    if word == "mpirun":
        own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local)}
    tasks.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **step, **own}))
sys.exit(max(task.wait() for task in tasks))

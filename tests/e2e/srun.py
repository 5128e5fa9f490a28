"""Starts a command as srun starts the tasks of a step on one node: python srun.py NUM COMMAND…"""

import os
import subprocess
import sys

num = int(sys.argv[1])
step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(num), "SLURM_STEP_NUM_TASKS": str(num)}
step |= {"SLURM_STEP_TASKS_PER_NODE": str(num), "SLURM_NODEID": "0"}
tasks = [
    subprocess.Popen(sys.argv[2:], env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
    for rank in range(num)
]
sys.exit(max(task.wait() for task in tasks))

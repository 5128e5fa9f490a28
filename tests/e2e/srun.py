"""Starts a command as srun starts the tasks of a step: python srun.py NUM COMMAND…

All tasks run on one node, or with the word "apart" before NUM on a node each: in folders of their own, node0 and so on.
"""

import os
import subprocess
import sys
from pathlib import Path

apart = sys.argv[1] == "apart"
num, *command = sys.argv[1 + apart :]
step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_NTASKS": num, "SLURM_STEP_NUM_TASKS": num}
step["SLURM_STEP_TASKS_PER_NODE"] = f"1(x{num})" if apart else num
tasks = []
for rank in range(int(num)):
    folder = Path(f"node{rank}" if apart else ".")
    folder.mkdir(exist_ok=True)
    node, local = (rank, 0) if apart else (0, rank)
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
    tasks.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **step, **own}))
sys.exit(max(task.wait() for task in tasks))

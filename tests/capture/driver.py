"""Runs scripts under capture one after the other and writes what came of them.

Usage: driver.py RESULT.json JOBS.json [PORT]; a job is {"argv", "module", "options"}. The exit code is the last job's.
With a port two ranks, which meet there, are forked to run the jobs: torch is imported once for both.
"""

import json
import os
import resource
import sys
from pathlib import Path

from diagnose.capture import CaptureOptions, trace_script
from diagnose.errors import DiagnoseError


class Lines:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def run(job):
    lines = Lines()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # a script may lower it
    options = CaptureOptions(**{**job["options"], "output": Path(job["options"]["output"])})
    try:
        result = trace_script(job["argv"], options, module=job.get("module", False), progress=lines)
    except DiagnoseError as error:
        return {"failure": str(error), "kind": type(error).__name__, "exit_code": error.exit_code, "said": lines.said}
    return {
        "failure": "",
        "exit_code": result.exit_code,
        "error": repr(result.error),
        "folder": str(result.folder),
        "threads": list(result.threads),
        "said": lines.said,
    }


def forked(port):
    """Become two ranks, whose parent ends with the code of the one that fails, if one does."""
    import torch._dynamo  # once for both ranks: the first optimizer would import it
    import torch.distributed  # noqa: F401

    ranks = []
    for rank in ("0", "1"):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            return
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(max(codes, key=abs))


def main():
    if len(sys.argv) > 3:
        forked(sys.argv[3])
    jobs = json.loads(Path(sys.argv[2]).read_text())
    results = [run(job) for job in jobs]
    Path(sys.argv[1]).write_text(json.dumps(results))
    sys.exit(results[-1]["exit_code"])


if __name__ == "__main__":
    main()

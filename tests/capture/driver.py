"""Runs scripts under capture one after the other and writes what came of them.

Usage: driver.py RESULT.json JOBS.json; a job is {"argv", "module", "options"}. The exit code is the last job's. With
"processes" a job runs in so many processes of its own, forked from this one.
"""

import json
import os
import resource
import socket
import sys
from pathlib import Path

from diagnose.capture import CaptureOptions, trace_script
from diagnose.errors import DiagnoseError


class Lines:
    def __init__(self):
        self.said = []

    def report(self, text):
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


def forked(job):
    """Run the job in processes of its own, as ranks where there are several: torch is imported already."""
    num = job["processes"]
    port = free_port() if num > 1 else ""
    processes = []
    for rank in range(num):
        processes.append(os.fork())
        if not processes[-1]:
            if num > 1:
                os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{num}")
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            result = run(job)
            print(result["failure"], flush=True)
            os._exit(result["exit_code"])
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes]}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def main():
    jobs = json.loads(Path(sys.argv[2]).read_text())
    results = [forked(job) if "processes" in job else run(job) for job in jobs]
    Path(sys.argv[1]).write_text(json.dumps(results))
    sys.exit(results[-1].get("exit_code", 0))


if __name__ == "__main__":
    main()

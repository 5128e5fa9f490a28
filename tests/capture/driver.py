"""Runs scripts under capture one after the other and writes what came of them.

Usage: driver.py RESULT.json JOBS.json; a job is {"argv", "module", "options"}. The exit code is the last job's.
"""

import json
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


def main():
    jobs = json.loads(Path(sys.argv[2]).read_text())
    results = [run(job) for job in jobs]
    Path(sys.argv[1]).write_text(json.dumps(results))
    sys.exit(results[-1]["exit_code"])


if __name__ == "__main__":
    main()

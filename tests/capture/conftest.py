import contextlib
import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose.model.capture import CaptureInfo

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
MARK = "DIAGNOSE_TEST_FOLDER"  # in the environment of every process that a test starts
SECRETS = ("--api-key=planted-1", "--token", "planted-2")  # no file of a capture may hold one
TIMEOUT = 300  # seconds: far above what a run takes, so that a hang fails
AFTER_TIMING = 24  # steps: the timing window of six steps is over, the script has many to go


@dataclass
class Ran:
    """One job's outcome; ``info`` is capture.json, None where nothing was written."""

    result: dict
    folder: Path
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0

    @property
    def info(self):
        path = self.folder / "capture.json"
        return CaptureInfo.from_json(path.read_bytes(), source=str(path)) if path.exists() else None

    def events(self, window):
        with gzip.open(self.folder / f"rank0.{window}.pt.trace.json.gz") as packed:
            trace = json.load(packed)
        base = trace.get("baseTimeNanoseconds", 0)
        return [
            SimpleNamespace(
                name=e["name"],
                cat=e.get("cat", ""),
                start=base + round(e["ts"] * 1000),
                end=base + round((e["ts"] + e.get("dur", 0)) * 1000),
                args=e.get("args", {}),
            )
            for e in trace["traceEvents"]
            if e.get("ph") in ("X", "i") and "name" in e
        ]

    def marks(self, window):
        return sorted((e for e in self.events(window) if e.name.startswith("ProfilerStep#")), key=lambda e: e.start)


class Capturing:
    """Runs scripts under capture; everything it writes lies in ``folder``."""

    scripts = SCRIPTS

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def job(self, name, *args, module=False, **options):
        self.count += 1
        argv = [name if module else str(SCRIPTS / name), *map(str, args)]
        return {
            "argv": argv,
            "module": module,
            "options": {"output": str(self.folder / f"capture{self.count}"), **options},
        }

    def command(self, jobs):
        path = self.folder / f"jobs{self.count}.json"
        path.write_text(json.dumps(jobs))
        return [str(HERE / "driver.py"), str(self.folder / f"results{self.count}.json"), str(path)]

    def run(self, jobs):
        """Run the jobs in one process."""
        command = self.command(jobs)
        done = self.process(command)
        path = Path(command[1])
        results = json.loads(path.read_text()) if path.exists() else [{}] * len(jobs)
        return [
            Ran(result, Path(job["options"]["output"]), done.stdout, done.stderr, done.returncode)
            for job, result in zip(jobs, results, strict=True)
        ]

    def process(self, command):
        kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "KINETO_LOG_LEVEL")}
        environment = {**kept, "OMP_NUM_THREADS": "1", MARK: str(self.folder)}
        return subprocess.run(
            [sys.executable, *command],
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment,
            check=False,
        )

    def leftovers(self):
        """Return the command lines of processes of ours that still run."""
        mark, found = f"{MARK}={self.folder}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes())
        return found

    def __call__(self, name, *args, **options):
        return self.run([self.job(name, *args, **options)])[0]


@pytest.fixture
def capturing(tmp_path):
    return Capturing(tmp_path)


def ending_jobs(capturing):
    """Return scripts that end in every way."""
    jobs = {"module": capturing.job("package", "--flag", module=True, steps=4)}  # torch is not imported yet
    jobs |= {
        (event, when): capturing.job("train.py", 1000, event, when, steps=6, skip=4)
        for event in ("raise", "exit", "int", "term")
        for when in (0, AFTER_TIMING)
    }
    jobs["missing"] = capturing.job("nothing.py")
    jobs["occupied"] = {**capturing.job("train.py"), "options": jobs["raise", AFTER_TIMING]["options"]}
    jobs["forks"] = capturing.job("train.py", 1_000_000, "fork", 3, steps=6, skip=4)
    jobs["full disk"] = capturing.job("train.py", 1_000_000, "full", AFTER_TIMING, steps=6, skip=4)
    jobs["killed"] = capturing.job("train.py", 1000, "kill", AFTER_TIMING, steps=6, skip=4) | {"processes": 1}
    jobs["two ranks"] = capturing.job("ranks.py", steps=4, skip=6) | {"processes": 2}
    return jobs


def step_jobs(capturing):
    """Return scripts of every kind of step, which end well."""
    kinds = ("gan", "in_backward", "lbfgs", "scaler", "inference", "marker", "in_child", "never", "phases", "teacher")
    jobs = {kind: capturing.job("steps.py", kind, steps=6) for kind in kinds}
    jobs["profiled"] = capturing.job("steps.py", "profiled", steps=6, skip=4)
    jobs["profiled_always"] = capturing.job("steps.py", "profiled_always", steps=6, skip=4)
    jobs["auto"] = capturing.job("train.py")
    jobs["train"] = capturing.job("train.py", 300, "none", -1, *SECRETS, steps=6, keep_going=True)
    jobs["short"] = capturing.job("train.py", 22, skip=4)
    jobs["shorter"] = capturing.job("train.py", 3)
    jobs["load"] = capturing.job("load.py", "none", "train", steps=6)
    jobs["batches"] = capturing.job("load.py", "none", steps=6)
    jobs["fork"] = capturing.job("load.py", "fork", "train", steps=6)
    jobs["train on loader"] = capturing.job("load.py", "none", "train", steps=6, step_on="dataloader")
    return jobs


def bounded_jobs(capturing):
    """Return scripts whose steps exceed a bound on their own."""
    return {
        "frames": capturing.job("bounds.py", "frames", steps=2, skip=0, max_mb=5.0),
        "operators": capturing.job("bounds.py", "operators", steps=2, skip=0, max_mb=5.0),
        "endless": capturing.job("bounds.py", "endless", max_seconds=1.0),
    }


JOBS = {
    "test_endings.py": (ending_jobs, step_jobs),
    "test_steps.py": (step_jobs,),
    "test_privacy.py": (step_jobs,),
    "test_bounds.py": (bounded_jobs,),
}


@pytest.fixture(scope="session")
def captured(tmp_path_factory, request):
    """The jobs of all files that this session runs, traced one after the other in one process."""
    capturing = Capturing(tmp_path_factory.mktemp("captured"))
    files = {item.path.name for item in request.session.items if "captured" in item.fixturenames}
    jobs = {}
    for make in dict.fromkeys(make for file, makers in JOBS.items() if file in files for make in makers):
        jobs |= make(capturing)
    results = dict(zip(jobs, capturing.run(list(jobs.values())), strict=True))
    results["leftovers"] = capturing.leftovers()
    return results

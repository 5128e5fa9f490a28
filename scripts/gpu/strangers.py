"""Runs training scripts from outside the repository: each as it is and repaired, then traced, then proved.

    python3 scripts/gpu/strangers.py FOLDER --work build/strangers --minutes 8 times traces proofs

A script takes ``--device``, ``--steps N`` and ``--fixed`` (its repaired form) and prints ``step_ms=…``, its mean step
without a profiler. What an earlier call did is not done again. ``--pack`` puts the results into archives of bounded
size.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

STEP = re.compile(r"step_ms=([\d.]+)")
STAGES = ("times", "traces", "proofs")
LIMIT_S = {"times": 60.0, "traces": 120.0, "proofs": 150.0}
ARCHIVE_BYTES = 14 << 20
DONE = "capture.json"  # the last file of a capture


class ExpiredError(Exception):
    """A script took longer than it may."""


def step_ms(script: Path, device: str, steps: int, *, fixed: bool) -> dict[str, object]:
    """Run a script in a fork of this process, which holds torch but no GPU context; return what it measured."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, json.dumps(_measured(script, device, steps, fixed=fixed)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"error": "the process died"}


def _measured(script: Path, device: str, steps: int, *, fixed: bool) -> dict[str, object]:
    def expire(*_: object) -> None:
        raise ExpiredError

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(int(LIMIT_S["times"]))
    sys.argv = [str(script), "--device", device, "--steps", str(steps), *(["--fixed"] if fixed else [])]
    sys.path.insert(0, str(script.parent))
    out = io.StringIO()
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    except (Exception, ExpiredError) as error:  # the other scripts are still to come
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    found = STEP.search(out.getvalue())
    return {"step_ms": float(found[1]) if found else None, "seconds": round(time.monotonic() - began, 1)}


def time_script(script: Path, work: Path, device: str, steps: int, repeats: int) -> None:
    """Measure both forms in turns."""
    runs = [(fixed, step_ms(script, device, steps, fixed=fixed)) for _ in range(repeats) for fixed in (False, True)]
    kept = {"planted": [r for fixed, r in runs if not fixed], "fixed": [r for fixed, r in runs if fixed]}
    (work / "times").mkdir(parents=True, exist_ok=True)
    (work / "times" / f"{script.stem}.json").write_text(json.dumps(kept), encoding="utf-8")
    print(f"strangers: {script.stem} {kept}", file=sys.stderr, flush=True)


def trace_script(script: Path, work: Path, device: str) -> subprocess.Popen[bytes] | None:
    """Trace a script; return the process that analyses once the capture is complete, None where none came about."""
    folder = work / "traces" / script.stem
    folder.mkdir(parents=True, exist_ok=True)
    capture = folder / "capture"
    command = [sys.executable, "-m", "diagnose", "trace", "--quiet", "--force", "--capture", str(capture)]
    command += ["-o", str(folder / "answer.json"), str(script), "--device", device, "--steps", "100000"]
    began = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    while process.poll() is None and not (capture / DONE).exists():
        if time.monotonic() - began > LIMIT_S["traces"]:
            process.kill()
            process.wait()
            return None
        time.sleep(0.1)
    (folder / "seconds.json").write_text(json.dumps({"recorded": time.monotonic() - began}), encoding="utf-8")
    return process


def prove_script(script: Path, work: Path, budget_s: int) -> None:
    """Prove what the tool prescribes for a capture made before."""
    folder = work / "traces" / script.stem
    out = work / "proofs" / f"{script.stem}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "diagnose", "prove", "--yes", "--trust-command", "--quiet", "--force"]
    command += ["--budget", f"{budget_s}s", "-o", str(out), str(folder / "capture")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S["proofs"] + budget_s)
    print(f"strangers: proved {script.stem}: {done.returncode} {done.stderr[-600:]}", file=sys.stderr, flush=True)


def pack(work: Path, target: Path) -> None:
    """Pack all results into archives that each stay below what can be carried."""
    target.mkdir(parents=True, exist_ok=True)
    groups: list[list[Path]] = []
    size = ARCHIVE_BYTES
    for path in sorted(p for p in work.rglob("*") if p.is_file()):
        if size + path.stat().st_size > ARCHIVE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += path.stat().st_size
    for number, group in enumerate(groups):
        with tarfile.open(target / f"strangers{number}.tar", "w") as archive:
            for path in group:
                archive.add(path, path.relative_to(work))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--work", type=Path, default=Path("build/strangers"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=1, help="of each timing")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--budget", type=int, default=90, help="seconds for a proof")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--pack", type=Path)
    return parser.parse_args()


def main() -> int:
    options = parse()
    ends = time.monotonic() + 60 * options.minutes
    scripts = [p for p in sorted(options.folder.glob("*.py")) if not options.only or p.stem in options.only]
    analysing: list[subprocess.Popen[bytes]] = []

    def traced(script: Path) -> None:
        if (process := trace_script(script, options.work, options.device)) is not None:
            analysing.append(process)

    does: dict[str, tuple[str, Callable[[Path], None]]] = {
        "times": (
            "times/{}.json",
            lambda s: time_script(s, options.work, options.device, options.steps, options.repeats),
        ),
        "traces": ("traces/{}/seconds.json", traced),
        "proofs": ("proofs/{}.json", lambda s: prove_script(s, options.work, options.budget)),
    }
    if "times" in options.stages:
        import torch  # noqa: F401  # once for all forks
    for stage in options.stages:
        done, act = does[stage]
        for script in scripts:
            if (options.work / done.format(script.stem)).exists():
                continue
            if time.monotonic() + 20 > ends:
                print(f"strangers: no time for {stage} {script.stem}", file=sys.stderr)
                continue
            act(script)
    for process in analysing:
        with contextlib.suppress(subprocess.TimeoutExpiredError):
            process.wait(max(ends + 30 - time.monotonic(), 1))
    if options.pack:
        pack(options.work, options.pack)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs training scripts from outside the repository: each as it is and repaired, then traced, then proved.

    python3 evaluation/gpu/strangers.py FOLDER --work build/strangers --minutes 8 times traces proofs

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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

STEP = re.compile(r"step_ms=([\d.]+)")
STAGES = ("times", "traces", "proofs")
LIMIT_S = {"times": 60.0, "traces": 120.0, "proofs": 150.0}
IMPORT_S = 6.0  # after this torch is imported, or about to be
ARCHIVE_BYTES = 14 << 20
DONE = "capture.json"  # the last file of a capture


class ExpiredError(Exception):
    """A script took longer than it may."""


def step_ms(script: Path, words: list[str], steps: int, *, fixed: bool) -> dict[str, object]:
    """Run a script in a fork of this process, which holds torch but no GPU context; return what it measured."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, json.dumps(_measured(script, words, steps, fixed=fixed)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process died"}


def _measured(script: Path, words: list[str], steps: int, *, fixed: bool) -> dict[str, object]:
    def expire(*_: object) -> None:
        raise ExpiredError

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(int(LIMIT_S["times"]))
    sys.argv = [str(script), *words, "--steps", str(steps), *(["--fixed"] if fixed else [])]
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


def time_script(script: Path, work: Path, words: list[str], steps: int, forms: list[str]) -> None:
    """Measure the forms one after the other."""
    runs = [(form, step_ms(script, words, steps, fixed=form == "fixed")) for form in forms]
    kept = {name: [r for form, r in runs if form == name] for name in ("planted", "fixed")}
    (work / "times").mkdir(parents=True, exist_ok=True)
    (work / "times" / f"{script.stem}.json").write_text(json.dumps(kept), encoding="utf-8")
    print(f"strangers: {script.stem} {kept}", file=sys.stderr, flush=True)


@dataclass
class Tracing:
    """A traced script that has been started; while another one records it stands still, its imports done."""

    script: Path
    folder: Path
    process: subprocess.Popen[bytes]
    began: float

    @classmethod
    def start(cls, script: Path, work: Path, words: list[str]) -> Tracing:
        """Start it; `record` lets it get to the device."""
        folder = work / "traces" / script.stem
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "diagnose", "trace", "--quiet", "--force"]
        command += ["--capture", str(folder / "capture")]
        command += ["-o", str(folder / "answer.json"), str(script), *words, "--steps", "100000"]
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        return cls(script, folder, process, time.monotonic())

    def pause_once_imported(self) -> None:
        """Stop it where its imports are about done."""
        if time.monotonic() - self.began > IMPORT_S:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def record(self, following: Tracing | None) -> None:
        """Let it run until its capture is complete, and the following one up to its imports."""
        os.killpg(self.process.pid, signal.SIGCONT)
        began = time.monotonic()
        while self.process.poll() is None and not (self.folder / "capture" / DONE).exists():
            if following is not None:
                following.pause_once_imported()
            if time.monotonic() - began > LIMIT_S["traces"]:
                os.killpg(self.process.pid, signal.SIGKILL)
            time.sleep(0.1)
        seconds = {"recorded": round(time.monotonic() - began, 1)}
        (self.folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
        print(f"strangers: traced {self.script.stem} {seconds}", file=sys.stderr, flush=True)


def trace_all(scripts: list[Path], work: Path, words: list[str], ends: float) -> None:
    """Trace the scripts one after the other; analyses go on beside the next ones."""
    left = [script for script in scripts if not (work / "traces" / script.stem / "seconds.json").exists()]
    started: list[Tracing] = []
    for index, script in enumerate(left):
        if time.monotonic() + 20 > ends:
            print(f"strangers: no time for {[s.stem for s in left[index:]]}", file=sys.stderr)
            break
        if len(started) == index:
            started.append(Tracing.start(script, work, words))
        if index + 1 < len(left):
            started.append(Tracing.start(left[index + 1], work, words))
        started[index].record(started[index + 1] if index + 1 < len(left) else None)
    for tracing in started:
        if (tracing.folder / "seconds.json").exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                tracing.process.wait(max(ends + 30 - time.monotonic(), 1))
        if tracing.process.poll() is None:
            os.killpg(tracing.process.pid, signal.SIGKILL)


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
    parser.add_argument("--forms", default="planted,fixed", help="that are timed, in this order; one may come again")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--budget", type=int, default=90, help="seconds for a proof")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--argument", action="append", default=[], help="a further one of the scripts, as --small")
    parser.add_argument("--pack", type=Path)
    return parser.parse_args()


def main() -> int:
    options = parse()
    ends = time.monotonic() + 60 * options.minutes
    scripts = [p for p in sorted(options.folder.glob("*.py")) if not options.only or p.stem in options.only]
    words = ["--device", options.device, *options.argument]
    for stage in options.stages:
        if stage == "traces":
            trace_all(scripts, options.work, words, ends)
            continue
        if stage == "times":
            import_module("torch")  # once for all forks
        for script in scripts:
            if (options.work / stage / f"{script.stem}.json").exists():
                continue
            if time.monotonic() + 20 > ends:
                print(f"strangers: no time for {stage} {script.stem}", file=sys.stderr)
            elif stage == "times":
                time_script(script, options.work, words, options.steps, options.forms.split(","))
            else:
                prove_script(script, options.work, options.budget)
    if options.pack:
        pack(options.work, options.pack)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs what only a GPU can show: tests, captures, evaluation, kernels, overhead, agreement; each piece once.

A stage consists of pieces, and a piece is one command whose outcome is kept as JSON in the work folder; what is there
is not run again. ``--minutes`` bounds a call, and a piece that failed is run again by the next one. ``--pack`` puts
the small results of all calls so far into one archive; ``--report`` writes the tables for pages/ from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cut import cut_capture
from report import write_reports

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures"))
from catalogue import Fixture, fixtures  # a sibling of the scripts that it lists

STEP_MS = (1, 5, 50)
UNFINISHED = 3
KEPT_KB = 400
MAX_LOG_CHARS = 20_000  # characters of a piece's output that are kept, its end


@dataclass(frozen=True)
class Piece:
    """One command; ``after`` is called with its folder once it succeeded."""

    stage: str
    name: str
    command: tuple[str, ...]
    limit_s: float
    after: Callable[[Path], None] | None = None


def pieces(work: Path, device: str, steps: int | None = None) -> Iterator[Piece]:
    """Yield everything there is to run, the most valuable first; ``steps`` of each recorded window."""
    python = sys.executable
    cuda = "cuda" if device == "gpu" else "cpu"
    junit = f"--junitxml={work / 'tests' / 'gpu.xml'}"
    # Warnings of another torch than the one that the tests are written with are no failures here.
    pytest = (python, "-m", "pytest", "-q", "-W", "default")
    yield Piece("tests", "gpu", (*pytest, "-m", "gpu", junit, "tests"), 480)
    operators = ("tests/kernels/ops", f"--junitxml={work / 'tests' / 'operators.xml'}")  # Triton's programs, for real
    yield Piece("tests", "operators", (*pytest, *operators), 480)
    yield Piece("pairs", "all", (python, "evaluation/gpu/pairs.py", "--device", cuda), 480)
    for fixture in fixtures():
        for variant in ("planted", "fixed"):
            capture = work / "captures" / f"{fixture.name}-{variant}"
            script = (str(fixture.path), "--device", cuda, "--steps", "100000")
            command = (
                *_launcher(fixture), "-m", "diagnose", "trace", "--json", "--quiet", "--capture", str(capture),
                *(("--steps", str(steps)) if steps else ()), *script,
                *(("--fixed",) if variant == "fixed" else ()),
            )  # fmt: skip
            yield Piece("captures", f"{fixture.name}-{variant}", command, 120, _kept_small(capture))
    for fixture in fixtures():
        if fixture.expect[device] is not None:
            keep = ("--keep", str(work / "evaluation"))
            evaluate = (python, "evaluation/evaluate.py", "--device", device, "--budget", "60s", *keep)
            yield Piece("evaluation", fixture.name, (*evaluate, "--only", fixture.name), 300)
    for name in ("ops", "remedies_loading", "remedies_memory", "distributed"):
        yield Piece("kernels", name, (python, f"evaluation/benchmarks/{name}.py"), 480)
    for step_ms in STEP_MS:
        command = (python, "evaluation/gpu/overhead.py", "--device", cuda, "--step-ms", str(step_ms))
        yield Piece("overhead", f"{step_ms}ms", command, 120)
    yield Piece("agreement", "all", (python, "evaluation/gpu/agreement.py"), 180)


def _launcher(fixture: Fixture) -> tuple[str, ...]:
    ranks = (f"--nproc-per-node={fixture.ranks}",)
    return (sys.executable, *(("-m", "torch.distributed.run", "--standalone", *ranks) if fixture.ranks > 1 else ()))


def _kept_small(capture: Path) -> Callable[[Path], None]:
    def keep(folder: Path) -> None:
        try:
            cut_capture(capture, folder / f"{capture.name}-small", KEPT_KB * 1000)
        except ValueError as error:
            print(f"gpu_day: {capture.name} is not kept: {error}", file=sys.stderr)

    return keep


def run(piece: Piece, work: Path) -> bool:
    """Run one piece and keep its outcome; return whether it succeeded."""
    folder = work / piece.stage
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            piece.command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=piece.limit_s
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        code, out, err = -1, _text(expired.stdout), f"stopped after {piece.limit_s:.0f} s\n{_text(expired.stderr)}"
    if code in (0, 1) and piece.after is not None:  # 1: ran to its end, and a bar was missed
        piece.after(folder)
    outcome = {
        "name": piece.name,
        "code": code,
        "seconds": round(time.monotonic() - began, 1),
        "out": out[-MAX_LOG_CHARS:] if not out.startswith("{") else out,
        "err": err[-MAX_LOG_CHARS:],
    }
    _outcome(piece, work).write_text(json.dumps(outcome), encoding="utf-8")
    return code in (0, 1)


def _text(held: bytes | str | None) -> str:
    return held.decode(errors="replace") if isinstance(held, bytes) else held or ""


def _outcome(piece: Piece, work: Path) -> Path:
    return work / piece.stage / f"{piece.name}.outcome.json"


def is_done(piece: Piece, work: Path) -> bool:
    """Return whether an earlier call ran the piece to its end."""
    path = _outcome(piece, work)
    return path.exists() and json.loads(path.read_text("utf-8"))["code"] in (0, 1)


def pack(work: Path, target: Path) -> None:
    """Put the outcomes and the small captures into one archive; whole captures stay behind."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target / "gpu_day.tar.gz", "w:gz") as archive:
        for path in sorted(work.rglob("*")):
            small = path.parent.name.endswith("-small") or path.suffix in (".json", ".xml")
            if path.is_file() and small and (path.parent.parent == work or path.parent.name.endswith("-small")):
                archive.add(path, path.relative_to(work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="tests, captures, evaluation, kernels, overhead, …")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu_day", help="where outcomes are kept")
    parser.add_argument("--pack", type=Path, help="put the results so far into gpu_day.tar.gz in this folder")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no piece that may last beyond (default: 9)")
    parser.add_argument("--steps", type=int, help="of each recorded window of the captures; fewer are faster")
    parser.add_argument("--only", action="append", default=[], help="pieces whose name begins so; may be repeated")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: to try this script itself")
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write the tables from the results there, and end"
    )
    options = parser.parse_args()
    if options.report:
        write_reports(options.work, options.report)
        return 0
    if options.device == "gpu" and not _sees_gpu():
        print("gpu_day: torch sees no GPU here; --device cpu tries the script itself.", file=sys.stderr)
        return 2
    os.environ.pop("TRITON_INTERPRET", None)
    ends = time.monotonic() + 60 * options.minutes
    wanted = [
        piece
        for piece in pieces(options.work, options.device, options.steps)
        if (not options.stages or piece.stage in options.stages)
        and (not options.only or piece.name.startswith(tuple(options.only)))
    ]
    left = [piece for piece in wanted if not is_done(piece, options.work)]
    failed, late = [], []
    for piece in left:
        if time.monotonic() + min(piece.limit_s, 60) > ends:
            late.append(piece)
            continue
        print(f"gpu_day: {piece.stage} {piece.name}", file=sys.stderr)
        if not run(piece, options.work):
            failed.append(piece)
    if options.pack:
        pack(options.work, options.pack)
    named = ", ".join(f"{piece.stage} {piece.name}" for piece in failed) or "none"
    print(f"{len(wanted) - len(failed) - len(late)} of {len(wanted)} pieces done; {len(late)} left; failed: {named}")
    return 1 if failed else UNFINISHED if late else 0


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())

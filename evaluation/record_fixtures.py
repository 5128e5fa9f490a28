"""Records small captures of the bundled scripts, and of those of outsiders, on the CPU: tests analyse them.

The scripts and the package are copied into one neutral folder and run there by relative paths, so that a capture names
no folder of the machine that it was made on. A capture is kept if its dominant finding is what the script plants; one
that names the machine, the user or a folder, or is too large, is refused.
"""

from __future__ import annotations

import argparse
import getpass
import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "fixtures" / "captures"
OUTSIDERS = ROOT / "evaluation" / "third_party_scripts"
OF_OUTSIDERS = ROOT / "tests" / "changes" / "captures"  # for tests of the diffs that are printed for them
PLACE = Path(tempfile.gettempdir(), "diagnose-fixtures")  # the one folder that captures name
MAX_BYTES = 400_000
# What each script is recorded with: few steps, as many as its bottleneck needs to show.
WINDOWS = {
    "barrier_every_step": ("--skip", "10", "--steps", "2"),
    "feature_service": ("--skip", "10", "--steps", "4"),
    "gc_every_step": ("--skip", "10", "--steps", "2"),
    "loop_optimizer": ("--skip", "10", "--steps", "1", "--max-mb", "10"),
    "slow_dataset": ("--skip", "10", "--steps", "1", "--max-mb", "4"),
}
OUTSIDERS_WINDOWS = {
    name: ("--quick", "--steps", num)
    for name, num in {
        "accelerate_classifier": "4",
        "char_lm": "6",
        "evaluation_in_loop": "6",
        "gan_two_optimizers": "4",
        "gradient_accumulation": "4",
        "iterable_shards": "6",
        "lightning_autoencoder": "4",
        "many_items": "2",
        "periodic_checkpoint": "6",
        "slow_transform": "6",
    }.items()
}
FOLDERS = re.compile(
    r"(?<![\w./<])/(?!tmp/diagnose-fixtures)(?:home|root|work|usr|opt|srv|mnt|Users|private|var|tmp)/[^\"\s]*"
)


def expected(name: str) -> tuple[tuple[str, ...], int]:
    """Return the rules of which one must dominate on a CPU, and the number of ranks."""
    head = (ROOT / "fixtures" / f"{name}.py").read_text(encoding="utf-8").split('"""', maxsplit=1)[0]
    rules = re.search(r"^# expect: .*\bcpu=(\S+)", head, re.MULTILINE)
    ranks = re.search(r"^# needs: (\d+) ranks", head, re.MULTILINE)
    if rules is None:
        raise SystemExit(f"fixtures/{name}.py has no line '# expect: gpu=RULE cpu=RULE'.")
    return tuple(rules[1].split("|")), int(ranks[1]) if ranks else 1


def prepare() -> None:
    """Copy the scripts and the package, links followed, into the neutral folder."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(mode=0o700)
    for path in (*(ROOT / "fixtures").glob("*.py"), *OUTSIDERS.glob("*.py")):
        shutil.copy(path, PLACE)
    shutil.copytree(ROOT / "diagnose", PLACE / "diagnose", ignore=shutil.ignore_patterns("__pycache__"))


def record(name: str, ranks: int) -> Path | None:
    """Trace a script in the neutral folder; return the capture, None where nothing was captured."""
    capture = PLACE / "captures" / name
    shutil.rmtree(capture, ignore_errors=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    windows, own = (WINDOWS[name], ["--device", "cpu", "--steps", "400"]) if name in WINDOWS else (
        OUTSIDERS_WINDOWS[name], []
    )  # fmt: skip
    command = [sys.executable, *launcher, "-m", "diagnose", "trace", "--json", "--quiet", *windows]
    command += ["--capture", f"captures/{name}", f"{name}.py", *own]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PLACE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=PLACE, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0 or not capture.is_dir():
        print(done.stderr, file=sys.stderr)
        return None
    return capture


def named(capture: Path) -> set[str]:
    """Return what in a capture belongs to this machine: names, and folders but the neutral one."""
    found: set[str] = set()
    own = {platform.node(), getpass.getuser()} - {""}
    for path in capture.iterdir():
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        found |= set(FOLDERS.findall(text)) | {word for word in own if re.search(rf"\b{re.escape(word)}\b", text)}
    return found


def complaint(capture: Path, rules: tuple[str, ...]) -> str:
    """Return why a capture cannot be kept, nothing where it can."""
    size = sum(path.stat().st_size for path in capture.iterdir())
    if size > MAX_BYTES:
        return f"{size} bytes, of {MAX_BYTES} at most"
    if found := named(capture):
        return f"it names {', '.join(sorted(found)[:5])}"
    command = [sys.executable, "-m", "diagnose", "analyze", str(capture), "--json", "--quiet"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if rules and answer["dominant"] not in rules:
        return f"{answer['dominant']} dominates, not {' or '.join(rules)}"
    return ""


def main() -> int:
    """Record the scripts that are named, or all; return 1 where one could not be kept."""
    parser = argparse.ArgumentParser(description="Records the captures in fixtures/captures.")
    parser.add_argument("names", nargs="*", choices=[*WINDOWS, *OUTSIDERS_WINDOWS, []], metavar="NAME")
    failed = False
    prepare()
    for name in parser.parse_args().names or (*WINDOWS, *OUTSIDERS_WINDOWS):
        rules, ranks = expected(name) if name in WINDOWS else ((), 1)
        kept = (KEPT if name in WINDOWS else OF_OUTSIDERS) / name
        capture = record(name, ranks)
        wrong = complaint(capture, rules) if capture else "nothing was captured"
        failed = failed or bool(wrong)
        print(f"{name}: {f'not kept: {wrong}' if wrong else 'kept'}", flush=True)
        if capture and not wrong:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(capture, kept)
            for path in kept.iterdir():
                path.chmod(0o644)
    return failed


if __name__ == "__main__":
    sys.exit(main())

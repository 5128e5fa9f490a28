"""Plants wrong lines in a copy of the tree, one at a time, and reports which of them the tests notice.

The tests that apply must pass first without any of them. Returns 1 where they do not, or where the text that a line
replaces is not found exactly once; lines that nothing notices are reported, and leave the exit code at 0.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cases import CASES, Case

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("diagnose", "analyzers", "kernels", "reports")
SUFFIXES = (".py", ".cu", ".cpp", ".h")
HANGS_S = 900  # a wrong line may make a loop endless: that is noticed, too
NO_TESTS = 5  # pytest's exit code


def copied(tree: Path, folder: Path) -> Path:
    """Copy what git knows of a tree, links as links; recorded traces beside it are found from the copy, too."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (tree / name).exists():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / "tree" / name, follow_symlinks=False)
    if (tree.parent / "shared").exists():
        (folder / "shared").symlink_to((tree.parent / "shared").resolve())
    return folder / "tree"


def sources(tree: Path) -> Iterator[Path]:
    """Go through the sources of the packages; the links among them lead to files that are gone through anyway."""
    for name in SOURCES:
        for path in sorted(path for path in (tree / name).rglob("*") if path.suffix in SUFFIXES):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def texts_of(tree: Path) -> dict[Path, str]:
    """Return the text of each source."""
    return {path: path.read_text(encoding="utf-8") for path in sources(tree)}


def place_of(texts: Mapping[Path, str], case: Case) -> Path | str:
    """Return the file that a line is to be planted in, or what is wrong with its text."""
    holders = [path for path, text in texts.items() if case.old in text]
    if len(holders) == 1 and texts[holders[0]].count(case.old) == 1:
        return holders[0]
    return f"found in {', '.join(map(str, holders)) or 'no source'}, not exactly once"


@contextmanager
def planted(path: Path, case: Case) -> Iterator[None]:
    """Replace the text for as long as the block runs; compiled files of the module go, as their times are coarse."""
    text = path.read_text(encoding="utf-8")
    try:
        _write(path, text.replace(case.old, case.new))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def tests_of(tree: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files and folders of tests that the patterns name."""
    return sorted({path for pattern in patterns for path in tree.glob(pattern)})


def passes(tree: Path, patterns: Sequence[str], options: Sequence[str]) -> bool:
    """Run the tests that the patterns name and return whether all of them pass."""
    paths = [str(path.relative_to(tree)) for path in tests_of(tree, patterns)]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *paths]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, check=False, capture_output=True, timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode == NO_TESTS:
        raise SystemExit(f"{' '.join(patterns)}: no test.")
    return done.returncode == 0


def outcomes(
    tree: Path, cases: Sequence[Case], options: Sequence[str], also: Sequence[str]
) -> Iterator[tuple[Case, str]]:
    """Yield each line with what became of it."""
    sound: dict[tuple[str, ...], bool] = {}
    texts = texts_of(tree)
    for case in cases:
        path = place_of(texts, case)
        if isinstance(path, str):
            yield case, path
            continue
        tests = (*case.tests, *also)
        if tests not in sound:
            sound[tests] = passes(tree, tests, options)
        if not sound[tests]:
            yield case, "its tests fail without it"
            continue
        with planted(path, case):
            survived = passes(tree, tests, options)
        yield case, "survived" if survived else "killed"


def main() -> int:
    """Print a row for each line, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", action="append", choices=sorted({case.area for case in CASES}), help="only these")
    parser.add_argument("--full", action="store_true", help="also the tests marked full")
    parser.add_argument("--only", metavar="TEXT", help="only lines whose text holds this")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, such as one of an older commit")
    parser.add_argument("--also", action="append", default=[], metavar="TESTS", help="run these tests, too")
    asked = parser.parse_args()
    cases = [c for c in CASES if (not asked.area or c.area in asked.area) and (not asked.only or asked.only in c.old)]
    options = ["-m", "full or not full"] if asked.full else []
    counts: dict[str, list[int]] = {}
    wrong = False
    with tempfile.TemporaryDirectory(prefix="diagnose-mutations-") as folder:
        tree = copied(asked.tree.resolve(), Path(folder))
        for case, outcome in outcomes(tree, cases, options, asked.also):
            print(f"{outcome:10} {case.area:10} {case.old} -> {case.new}", flush=True)
            sums = counts.setdefault(case.area, [0, 0])
            sums[0] += outcome == "killed"
            sums[1] += 1
            wrong = wrong or outcome not in ("killed", "survived")
    print("| area | planted | killed |\n|---|---|---|")
    for area, (killed, num) in counts.items():
        print(f"| {area} | {num} | {killed} |")
    print(f"| all | {sum(num for _, num in counts.values())} | {sum(killed for killed, _ in counts.values())} |")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

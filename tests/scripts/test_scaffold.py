"""The skeletons of a rule and of a change: few files, which pass every check of rules and changes as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import scaffold

ROOT = Path(__file__).parents[2]
FOLDERS = ("analyzers", "diagnose", "docs", "evaluation", "fixtures", "kernels", "reports", "scripts", "tests")
CHECKS = (
    "tests/analyzers/test_rule_files.py",
    "tests/changes/test_change_files.py",
    "tests/fixtures/test_catalogue.py",
    "tests/reports/test_language.py",
)
RULE_FILES = {
    "analyzers/slow_thing.py",
    "fixtures/slow_thing.py",
    "tests/analyzers/test_slow_thing.py",
}
IDLE_RULE_FILES = {name.replace("slow_thing", "late_thing") for name in RULE_FILES}
CHANGE_FILES = {"analyzers/slow_thing.py", "diagnose/changes/faster_thing.py", "tests/changes/test_faster_thing.py"}
PAGES = {"docs/changes.md", "docs/rules.md"}


@pytest.fixture
def scratch(tmp_path_factory):
    """Return a copy of the repository without what is large."""
    folder = tmp_path_factory.mktemp("scratch")
    leave_out = shutil.ignore_patterns("__pycache__", "captures", "found", "*.png", "csrc")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=leave_out)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def contents(folder):
    files = (path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if "__pycache__" not in path.parts}


def touched(before, after):
    links = ("diagnose/analyzers/", "diagnose/kernels/", "diagnose/reports/")
    return {name for name in after if before.get(name) != after[name] and not name.startswith(links)}


@pytest.mark.full
@pytest.mark.parametrize("which", [("-k", "thing"), ()], ids=["own", "all"])
def test_they_touch_few_files_and_pass_the_checks(scratch, which):
    first = contents(scratch)
    rule = run(scratch, "scripts/scaffold.py", "rule", "slow-thing")
    assert (rule.returncode, rule.stderr) == (0, "")
    second = contents(scratch)
    assert touched(first, second) == RULE_FILES | {"docs/rules.md"}
    idle = run(scratch, "scripts/scaffold.py", "rule", "late-thing", "--kind", "idle")
    assert (idle.returncode, idle.stderr) == (0, "")
    first, second = second, contents(scratch)
    assert touched(first, second) == IDLE_RULE_FILES | {"docs/rules.md"}
    change = run(scratch, "scripts/scaffold.py", "change", "faster-thing", "--rule", "slow-thing")
    assert (change.returncode, change.stderr) == (0, "")
    assert touched(second, contents(scratch)) == CHANGE_FILES | PAGES
    tests = run(
        scratch, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which, *CHECKS,
        "tests/analyzers/test_slow_thing.py", "tests/analyzers/test_late_thing.py",
        "tests/changes/test_faster_thing.py",
    )  # fmt: skip
    assert tests.returncode == 0, tests.stdout[-3000:]
    pages = run(scratch, "scripts/rules.py", "--check")
    assert pages.returncode == 0
    files = [name for name in sorted(RULE_FILES | IDLE_RULE_FILES | CHANGE_FILES) if name.endswith(".py")]
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = run(scratch, "-m", "ruff", *command, *files)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("function", "names", "words"),
    [
        ("new_rule", ["host-sync"], "there is a rule host-sync already"),
        ("new_rule", ["Slow Thing"], "Slow Thing is no id"),
        ("new_change", ["autocast", "host-sync"], "there is a change autocast already"),
        ("new_change", ["new-thing", "nonsense"], "there is no rule nonsense"),
    ],
)
def test_what_cannot_be_written_is_a_sentence(function, names, words):
    with pytest.raises(ValueError, match=words):
        getattr(scaffold, function)(*names)

"""The diffs printed for recorded runs apply to the scripts that were run, and the changed scripts run.

The recordings are those of the bundled scripts on an H100 (fixtures/traces) and on a CPU (fixtures/captures), and those
of scripts as users write them (evaluation/third_party_scripts) on a CPU (captures). Here all run on a CPU, for four
steps.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.changes.edits.source_edits import with_diffs
from diagnose.pipeline.run import analyze_captures
from diagnose.trace_reader import open_captures

ROOT = Path(__file__).resolve().parents[2]
RUN = Path(__file__).parent / "run_with_calls.py"
TRACES, CAPTURES = ROOT / "fixtures" / "traces", ROOT / "fixtures" / "captures"
OUTSIDERS = Path(__file__).parent / "captures"
# What the recordings of each script lead to, and the lines to edit: the call that makes it, or the place itself.
BUNDLED = {
    "checkpoint_often-planted": {"save-in-background": 36},
    "emptied_cache-fixed": {"compile-model": 21},
    "fp32_matmul-planted": {"autocast": 34},
    "gc_every_step-planted": {"compile-model": 24},
    "mixed_layouts-planted": {"compile-model": 29},
    "pageable_copy-planted": {"compile-model": 44},
    "barrier_every_step-planted": {"compile-model": 34},
    "serial_reads-planted": {"more-workers": 92, "concurrent-samples": 93, "compile-model": 99},
    "slow_dataset-planted": {"load-in-workers": 56, "concurrent-samples": 57},
}
# A cheaper line that only the author writes, or nothing that helps is known.
IN_WORDS = ("accelerate_classifier", "char_lm", "evaluation_in_loop", "iterable_shards", "slow_transform")
EVERY_DAY = ("checkpoint_often-planted", "slow_dataset-planted", "periodic_checkpoint", "many_items")


def cases(names):
    return [pytest.param(n, marks=() if n in EVERY_DAY else pytest.mark.full) for n in names]


@pytest.mark.parametrize("name", cases(sorted(path.name for path in TRACES.iterdir() if path.is_dir())))
def test_the_diffs_of_bundled_scripts(name, tmp_path, monkeypatch):
    script = Path("fixtures", f"{name.partition('-')[0]}.py")
    prescribed = printed(TRACES / name, ROOT / "fixtures", script, tmp_path, monkeypatch)
    lines = {p.id: p.edits[0].line for p in prescribed if p.diff}
    assert lines == BUNDLED.get(name, {})
    assert_they_run(prescribed, tmp_path, script)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.name for path in CAPTURES.iterdir()))
def test_the_diffs_of_bundled_scripts_on_a_cpu(name, tmp_path, monkeypatch):
    script = Path(f"{name}.py")
    assert_they_run(printed(CAPTURES / name, ROOT / "fixtures", script, tmp_path, monkeypatch), tmp_path, script)


@pytest.mark.parametrize("name", cases(sorted(path.name for path in OUTSIDERS.iterdir())))
def test_the_diffs_of_scripts_of_outsiders(name, tmp_path, monkeypatch):
    script = Path(f"{name}.py")
    folder = ROOT / "evaluation" / "third_party_scripts"
    prescribed = printed(OUTSIDERS / name, folder, script, tmp_path, monkeypatch)
    assert any(p.diff for p in prescribed) == (name not in IN_WORDS), "a diff of the script is printed"
    assert_they_run(prescribed, tmp_path, script)


def test_ten_scripts_of_outsiders_are_recorded():
    assert len(list(OUTSIDERS.iterdir())) >= 10


def printed(capture, source, script, folder, monkeypatch):
    """Copy the scripts, and return what is prescribed for the capture where the command is given the script."""
    (folder / script).parent.mkdir(exist_ok=True)
    for file in source.glob("*.py"):
        shutil.copy(file, (folder / script).parent)
    monkeypatch.chdir(folder)
    return with_diffs(analyze_captures(open_captures([capture]), draw=False), script).prescriptions


def assert_they_run(prescribed, folder, script):
    """Apply each diff alone; then let the script run with as many of them together as do not edit the same lines."""
    left = [p for p in prescribed if p.diff]
    assert all(git_applies(folder, p, "--check") for p in left)
    before = {file: file.read_bytes() for file in folder.rglob("*.py")}
    while left:
        applied = [p for p in left if git_applies(folder, p)]
        assert applied, f"{left[0].id} applies"
        assert four_steps(folder, script) == 4, [p.id for p in applied]
        left = [p for p in left if p not in applied]
        for file, content in before.items():
            file.write_bytes(content)


def git_applies(folder, prescription, *options):
    command = ["git", "apply", *options, "-"]
    done = subprocess.run(command, cwd=folder, input=prescription.diff, text=True, check=False, capture_output=True)
    return done.returncode == 0


def four_steps(folder, script):
    """Return how many steps the script makes until it is stopped at its fourth one, or ends."""
    text = (folder / script).read_text()
    ranks = re.search(r"^# needs: (\d+) ranks", text, re.MULTILINE)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks[1]}"] if ranks else []
    command = [sys.executable, *launcher, RUN, script]
    if "harness" in text:
        command += ["--steps", "6", "--device", "cpu"]
    environment = {
        **os.environ,
        "TORCH_COMPILE_DISABLE": "1",
    }  # that it compiles is not for each script to show
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.JSONDecoder().raw_decode(done.stdout)[0]["steps"]  # of the first rank

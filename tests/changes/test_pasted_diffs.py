"""The printed diff of a script applies, and the script runs with it: fixtures, and scripts as users write them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.changes import CHANGES
from diagnose.changes.common.change import SetArguments
from diagnose.changes.common.prescribe import prescribe
from diagnose.changes.common.separate_diffs import separated
from diagnose.model.diagnosis import Finding

ROOT = Path(__file__).resolve().parents[2]
RUN = Path(__file__).parent / "run_with_calls.py"
OUTSIDERS = ROOT / "scripts" / "third_party_scripts"
LOADING = Finding("data-stall", "", 5e6, facts={"single_process": True, "waits": True, "batch_ns": 5_000_000})
UPDATE = Finding("unfused-optimizer", "", 5e6)
LONG = pytest.mark.full
# Script, what is found, the lines that are edited.
CASES = [
    (OUTSIDERS, "tiny_items.py", (LOADING, UPDATE), (21, 23)),
    *(
        pytest.param(folder, name, found, lines, marks=LONG)
        for folder, name, found, lines in (
            (OUTSIDERS, "gan_two_optimizers.py", (UPDATE,), (87, 88)),
            (OUTSIDERS, "gradient_accumulation.py", (LOADING, UPDATE), (44, 47)),
            (OUTSIDERS, "iterable_shards.py", (LOADING,), (48,)),
            (OUTSIDERS, "slow_transform.py", (LOADING, UPDATE), (107, 109)),
            (OUTSIDERS, "char_lm.py", (UPDATE,), (67,)),
            (OUTSIDERS, "loop_adamw_groups.py", (UPDATE,), (13,)),
            (OUTSIDERS, "weighted_sampler.py", (LOADING, UPDATE), (42, 64)),
            (OUTSIDERS, "accelerate_classifier.py", (LOADING, UPDATE), (13, 24)),
            (OUTSIDERS, "lightning_autoencoder.py", (LOADING, UPDATE), (41, 45)),
            (OUTSIDERS, "evaluation_in_loop.py", (LOADING, UPDATE), (10, 43)),
            (ROOT / "fixtures", "loop_optimizer.py", (UPDATE,), (24,)),
            (ROOT / "fixtures", "slow_dataset.py", (LOADING,), (56,)),
            (ROOT / "fixtures", "serial_reads.py", (LOADING,), (92,)),
            (ROOT / "fixtures/frameworks", "accelerate_loop.py", (LOADING, UPDATE), (33, 34)),
            (ROOT / "fixtures/frameworks", "lightning_trainer.py", (LOADING, UPDATE), (42, 55)),
        )
    ),
]


@pytest.mark.parametrize(("folder", "name", "found", "lines"), CASES)
def test_a_printed_diff_applies_and_the_script_runs(folder, name, found, lines, tmp_path):
    for file in folder.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    calls = run(tmp_path, name)["calls"]
    edited, changes = set(), []
    for finding in found:
        made = [call for call in calls if takes(finding, call["name"])]
        facts = {"name": made[0]["name"], "made": made[0], "others": [{"made": call} for call in made[1:2]]}
        if finding is LOADING:
            facts = {**finding.facts, "made": made[0], "shares_out": True}
        changes.append(next(p for p in prescribe(replace(finding, facts=facts), 10e6) if p.diff))
        edited |= {edit.line for edit in changes[-1].edits}
    for change in separated(sorted(changes, key=lambda p: p.edits[0].line)):
        subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change.diff, text=True, check=True)
    assert sorted(edited) == sorted(lines)
    assert run(tmp_path, name)["steps"] == 2


def takes(finding, name):
    edits = [CHANGES[p].edit for p in ("load-in-workers",) * (finding is LOADING) + ("foreach-optimizer",)]
    return isinstance(edits[0], SetArguments) and name in edits[0].of


def run(folder, name):
    command = [sys.executable, RUN, name]
    if "harness" in (folder / name).read_text():
        command += ["--steps", "20", "--device", "cpu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)

"""Every bundled training script through the real command: what was planted is what is found, on the CPU.

Every day recorded captures are analysed (``evaluation/record_fixtures``), and test_frameworks.py traces a script live
whose plant nothing can hide. All of them, planted and repaired, are traced under the mark ``full`` and judged together:
another process can take the core away in the midst of any one of them.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from diagnose.pipeline.run import analyze_paths

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "fixtures" / "captures"
MAX_CAPTURES_BYTES = 3_000_000
BOUNDS = ("--skip", "40", "--steps", "8")  # a script that never settles still ends within the minute
SHORT = ("--skip", "8", "--steps", "3")
SHORTER = {"recompiling": ("--skip", "8", "--steps", "8")}  # it never settles, and each of its steps compiles
MIN_LOST_SHARE = 0.02  # of a step: below this a finding is not worth a reader's time
REPAIRED_SHARE = 0.10  # a repaired script waits for its next bottleneck, and the machine has noise of its own
RIGHT_SHARE = 0.85  # of all scripts together, each traced once
LIVE = ("slow_dataset",)  # samples that wait for a fixed time: load makes the share smaller, never nothing


def _catalogue():
    spec = importlib.util.spec_from_file_location("catalogue", ROOT / "fixtures" / "catalogue.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["catalogue"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return {fixture.name: fixture for fixture in module.fixtures()}


FIXTURES = _catalogue()
RECORDED = sorted(path.name for path in CAPTURES.iterdir())


def _trace(diagnose, fixture, bounds, *arguments):
    """Return the diagnosis, or what was printed of a script that a signal ended."""
    traced = ["trace", "--json", "--quiet", *bounds, fixture.path, "--device", "cpu", "--steps", "400", *arguments]
    if fixture.ranks == 1:
        done = diagnose(*traced)
    else:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        done = diagnose(*traced, launcher=(*torchrun, f"--nproc-per-node={fixture.ranks}", "-m", "diagnose"))
    if "was ended by SIG" in done.stderr:  # a crash of the profiler under load counts as a wrong answer
        return done.stderr
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_planted_dominates_its_recorded_capture(name):
    answer = analyze_paths([CAPTURES / name])
    assert answer.verdict == "no-gpu"
    assert answer.dominant in FIXTURES[name].expect["cpu"]


def test_recorded_captures_are_small():
    assert RECORDED
    sizes = [path.stat().st_size for path in CAPTURES.rglob("*") if path.is_file()]
    assert sum(sizes) < MAX_CAPTURES_BYTES


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_what_is_traced_live_is_among_the_findings(diagnose, name):
    answer = _trace(diagnose, FIXTURES[name], SHORT)
    assert isinstance(answer, dict), answer
    assert {finding["rule"] for finding in answer["findings"]} & set(FIXTURES[name].expect["cpu"])


def _large(answer, least):
    return [(f["rule"], f["lost_share"], f["title"]) for f in answer["findings"] if f["lost_share"] > least]


def _planted_wrong(fixture, answer):
    """Return what a diagnosis has instead of the plant."""
    if answer["dominant"] in fixture.expect["cpu"]:
        return []
    return _large(answer, MIN_LOST_SHARE) or ([("nothing found",)] if fixture.expect["cpu"] else [])


def _repaired_wrong(fixture, answer):
    """Return what a diagnosis finds in a script that is repaired."""
    least = MIN_LOST_SHARE if fixture.name == "healthy" else REPAIRED_SHARE
    return [found for found in _large(answer, least) if found[0] not in fixture.fixed["cpu"]]


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "wrong_of", "arguments"), [("expect", _planted_wrong, ()), ("fixed", _repaired_wrong, ("--fixed",))]
)
def test_nearly_every_script_is_diagnosed_right(diagnose, which, wrong_of, arguments):
    claimed = [fixture for fixture in FIXTURES.values() if getattr(fixture, which)["cpu"] is not None]
    wrong = {}
    for fixture in claimed:
        answer = _trace(diagnose, fixture, SHORTER.get(fixture.name, BOUNDS), *arguments)
        if found := [answer] if isinstance(answer, str) else wrong_of(fixture, answer):
            wrong[fixture.name] = found
    assert len(wrong) <= (1 - RIGHT_SHARE) * len(claimed), wrong

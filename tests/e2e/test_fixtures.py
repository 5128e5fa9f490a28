"""Every bundled training script through the real command: what was planted is what is found, on the CPU."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BOUNDS = ("--skip", "40", "--steps", "8")  # a script that never settles still ends within the minute
SHORTER = {"recompiling": ("--skip", "8", "--steps", "8")}  # it never settles, and each of its steps compiles
SMALL_SHARE = 0.02  # of a step: below this a finding is not worth a reader's time
ATTEMPTS = 3  # other processes on the machine take the core away in the midst of Python; no script is at fault then
REPAIRED_SHARE = 0.10  # a repaired script waits for its next bottleneck, and the machine has noise of its own


def _catalogue():
    spec = importlib.util.spec_from_file_location("catalogue", ROOT / "fixtures" / "catalogue.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["catalogue"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.fixtures()


def _cases(which):
    claims = [(fixture, getattr(fixture, which)["cpu"]) for fixture in _catalogue()]
    return [pytest.param(fixture, rules, id=fixture.name) for fixture, rules in claims if rules is not None]


def _trace(diagnose, fixture, *arguments):
    """Return the diagnosis, or what was said of a script that a signal ended."""
    bounds = SHORTER.get(fixture.name, BOUNDS)
    traced = ["trace", "--json", "--quiet", *bounds, fixture.path, "--device", "cpu", "--steps", "400", *arguments]
    if fixture.ranks == 1:
        done = diagnose(*traced)
    else:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        done = diagnose(*traced, launcher=(*torchrun, f"--nproc-per-node={fixture.ranks}", "-m", "diagnose"))
    if "was ended by SIG" in done.stderr:  # a crash of the profiler under load: one attempt, and it is told
        return done.stderr
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _large(diagnosis, least=SMALL_SHARE):
    return [(f["rule"], f["lost_share"], f["title"]) for f in diagnosis["findings"] if f["lost_share"] > least]


def _all_wrong(diagnose, fixture, complaint, *arguments):
    """Trace until nothing is to be complained of, a few times; return what was wrong in each attempt."""
    wrong = []
    for _ in range(ATTEMPTS):
        answer = _trace(diagnose, fixture, *arguments)
        wrong.append([answer] if isinstance(answer, str) else complaint(answer))
        if not wrong[-1]:
            return []
    return wrong


@pytest.mark.parametrize(("fixture", "rules"), _cases("expect"))
def test_what_was_planted_is_found(diagnose, fixture, rules):
    def complaint(diagnosis):
        assert diagnosis["verdict"] == "no-gpu"
        if diagnosis["dominant"] in rules:
            return []
        return _large(diagnosis) or ([("nothing found", rules)] if rules else [])

    assert _all_wrong(diagnose, fixture, complaint) == []


@pytest.mark.parametrize(("fixture", "rules"), _cases("fixed"))
def test_the_repaired_script_is_found_healthy(diagnose, fixture, rules):
    least = SMALL_SHARE if fixture.name == "healthy" else REPAIRED_SHARE

    def complaint(diagnosis):
        return [found for found in _large(diagnosis, least) if found[0] not in rules]

    assert _all_wrong(diagnose, fixture, complaint, "--fixed") == []

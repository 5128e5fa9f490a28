"""Some hundred mutants of a fixed seed, and every defect that was ever found: nothing crashes, no promise breaks."""

from pathlib import Path

import pytest
from fuzzing.cases import Case, Inputs, make
from fuzzing.pool import Setting, run_all
from fuzzing.summary import Summary

pytestmark = pytest.mark.fuzz

SEED = 20_260_101
COUNTS = {"trace": 200, "capture": 150, "report": 150}
FEW = {"trace": 12, "capture": 9, "report": 9}  # the first of them
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


def mutants(counts):
    return [{"kind": kind, "index": index} for kind, count in counts.items() for index in range(count)]


def assert_sound(results, counts):
    summary = Summary(SEED, jobs=2)
    for result in results:
        summary.add(result)
    assert dict(summary.mutants) == counts
    assert not summary.failed, "\n".join(summary.lines())


@pytest.fixture(scope="module")
def results():
    """Run a few mutants and every kept case in one process."""
    kept = [{"file": str(file), "index": index} for index, file in enumerate(FOUND)]
    return list(run_all([*mutants(FEW), *kept], Setting(SEED)))


@pytest.fixture(scope="module")
def replayed(results):
    """Return the results of kept cases by the file's name."""
    return {FOUND[result.index].name: result for result in results if result.kind == "file"}


def test_a_few_mutants_of_a_fixed_seed(results):
    assert_sound([result for result in results if result.kind != "file"], FEW)


@pytest.mark.full
def test_five_hundred_mutants_of_a_fixed_seed():
    assert_sound(run_all(mutants(COUNTS), Setting(SEED, jobs=2)), COUNTS)


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_found_once(replayed, file):
    result = replayed[file.name]
    assert result.problems == []
    expected = Case.from_json(file.read_text()).expect.get("code", result.code)
    assert result.code == expected


def test_a_mutant_depends_on_seed_kind_and_index_only():
    reports = ['{"verdict": "gaps", "findings": [], "step_ms": 1.0}'] * 2
    for kind in COUNTS:
        first = [make(3, kind, index, Inputs(reports=reports)).to_json() for index in range(12)]
        again = [make(3, kind, index, Inputs(reports=reports)).to_json() for index in reversed(range(12))]
        assert first == again[::-1]
        assert first[0] != make(4, kind, 0, Inputs(reports=reports)).to_json()
        assert len(set(first)) > 6


def test_a_case_comes_back_from_its_file():
    case = Case(("analyze", "t.json"), {"t.json": b"\xff\x00\x1f", "u.json": "é\x1b".encode()}, ("flip",), {"code": 4})
    assert Case.from_json(case.to_json()) == case

"""constant-work: what is the same in each step."""

import pytest

from diagnose.analyzers import constant_work
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.assignments import StoredSource
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables


def masked(t):
    ones = t.op("ones", shape=(4, 4), line=41, ns=200, content="1")
    mask = t.op("tril", ones, line=42, ns=200, content="mask", facts={"kind": "triangular"})
    return t.op("mul", t.value(4, 4), mask, line=50, ns=200)


def test_a_mask_that_is_the_same_in_each_step_is_named_with_its_use(recording):
    (finding,) = constant_work.find(t := tables(recording, steps(masked)))
    assert finding.lost_ns == 210_000
    assert finding.evidence[-1] == (
        "The mask (4 × 4) of line 42 of train.py has the same content in both steps; line 50 of train.py uses it."
    )
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["reuse-result"]


@pytest.mark.parametrize(("is_view", "lost_ns"), [(True, 320_000), (False, 200_000)])
def test_a_view_between_two_operators_that_go_takes_no_time_that_stays(recording, is_view, lost_ns):
    """What else stands between them stays, and so does the time on either side of it."""

    def masked(t):
        ones = t.op("ones", shape=(4, 4), line=41, ns=200, content="1")
        t.op("t" if is_view else "exp", ones if is_view else t.value(4, 4), line=42, is_view=is_view)
        mask = t.op("tril", ones, line=42, ns=200, content="mask", facts={"kind": "triangular"})
        return t.op("mul", t.value(4, 4), mask, line=50, ns=200)

    (finding,) = constant_work.find(tables(recording, steps(masked)))
    assert finding.lost_ns == lost_ns


@pytest.mark.parametrize(("pause", "lost_ns"), [(150, 360_000), (300, 200_000)])
def test_a_long_interval_between_two_operators_that_go_is_not_theirs(recording, pause, lost_ns):
    (finding,) = constant_work.find(tables(recording, steps(masked), pause=pause))
    assert finding.lost_ns == lost_ns


SOURCE = StoredSource(
    (
        (40, "def bank(size):\n    return ramps(size)"),
        (42, "def step(x):\n    mel = bank(512)\n    t = torch.from_numpy(mel)\n    return x @ t"),
    )
)


@pytest.mark.parametrize(
    ("sampled", "lost_ns"),
    [
        (((41, "bank"), (43, "step")), 400_000),
        (((41, "bank"), (7, "fetch")), 250_000),  # half of the time makes something else
        (((7, "fetch"),), 100_000),  # the operator's own
    ],
)
def test_python_that_makes_what_operators_bring_in_goes_by_the_share_that_samples_show(recording, sampled, lost_ns):
    def banked(t):
        hidden = t.op("exp", t.value(4, 4), line=9)
        bank = t.op("lift_fresh", shape=(4, 4), line=44, content="bank")
        return t.op("mm", hidden, bank, line=45)

    options = {"sources": {"train.py": SOURCE}, "sampled": sampled, "pause": 290}
    (found,) = constant_work.find(tables(recording, steps(banked), **options))
    assert found.title == "Python makes values that are the same in each step"
    assert found.lost_ns == pytest.approx(lost_ns, abs=2000)

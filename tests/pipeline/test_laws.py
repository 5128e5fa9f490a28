"""What holds of every answer: one true step, one ranking, a possible step that is the forecast of the cards, places."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from diagnose.answer import FLOOR, HOST_FLOOR
from diagnose.answer.cards import Prediction, predictions
from diagnose.answer.screen import answer, limit
from diagnose.model.locations import is_user_file
from diagnose.model.rules import LATE_RANKS
from diagnose.pipeline.run import analyze_paths

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDERS = [p for name in ("traces", "captures") for p in sorted((FIXTURES / name).iterdir()) if p.is_dir()]
NEAR = 1 + 1e-6  # JSON and tables hold whole nanoseconds
MAX_OFF = 0.05  # of the mean of the unprofiled steps


def true_step(d):
    """Check that the step is the one without the profiler, and that nothing is longer than it."""
    if d.source.unprofiled_step_ns and len(d.ranks) < 2:
        assert d.step_ns == pytest.approx(np.mean(d.source.unprofiled_step_ns), rel=MAX_OFF)
    most = d.step_ns * NEAR
    for finding in d.findings:
        assert 0 <= finding.worth_ns <= most, finding.rule
        assert 0 <= finding.lost_ns <= most, finding.rule
        assert 0 <= (finding.relief_ns or 0) <= most, finding.rule
    for p in (*d.prescriptions, *d.also_possible):
        assert 0 <= p.saves_ns[0] <= p.saves_ns[1] <= most, p.id
        assert 0 <= (p.predicted_step_ns or 0) <= most, p.id
    chain = (*d.waterfall.forecasts, *d.waterfall.combinations) if d.waterfall else ()
    for f in chain:
        assert 0 <= f.low_ns <= f.step_ns <= f.high_ns <= most, f.ids
    for name, p in predictions(d).items():
        assert 0 <= p.range_ns[0] <= p.range_ns[1] <= most, name
        assert 0 <= p.saves_ns <= most, name


def ranking(d):
    """Check that worth decides the order, the answer and the cards."""
    worths = [f.worth_ns for f in d.findings]
    if not any(f.rule == LATE_RANKS for f in d.findings):
        assert worths == sorted(worths, reverse=True)
    floor_ns = (FLOOR if d.queue is not None else HOST_FLOOR) * d.step_ns
    if len(d.ranks) < 2 and not d.record_again:
        first = d.findings[0].rule if worths and worths[0] >= floor_ns else None
        assert d.dominant == first
    shown = answer(d).cards
    numbers = [card.finding for card in shown]
    assert len(numbers) == len(set(numbers)), "one for each finding"
    first = shown[0].prediction if shown else None
    if first is not None and first.is_promise:
        assert numbers == sorted(numbers), "in the order of the findings"
    else:
        most = [card.prediction.most_ns for card in shown[1:] if card.prediction is not None]
        assert most == sorted(most, reverse=True), "what each saves at most, in its order"
    if d.dominant is None:
        assert not shown
    chain = d.waterfall.forecasts[-1].ids if d.waterfall else ()
    place = {f.rule: i for i, f in enumerate(d.findings)}
    rules = {p.id: p.rule for p in d.prescriptions}
    order = [place[rules[name]] for name in chain if name in rules]
    assert order == sorted(order)


def possible_step(d):
    """Check that the step after the cards is the forecast of exactly these, and the headline the first finding."""
    screen = answer(d)
    ids = tuple(card.prescription.id for card in screen.cards if card.prediction is not None)
    if screen.after is not None and not screen.is_measured:
        known = {f.ids: f for f in (*d.waterfall.combinations, *d.waterfall.forecasts)}
        found = known[ids]
        shown = screen.after
        assert (shown.after_ns, shown.low_ns, shown.high_ns) == (found.step_ns, found.low_ns, found.high_ns)
    elif ids and d.waterfall is not None and len(d.ranks) < 2:
        is_stated = all(card.prediction.is_promise for card in screen.cards if card.prediction is not None)
        last = {f.ids: f for f in (*d.waterfall.combinations, *d.waterfall.forecasts)}.get(ids)
        if is_stated and last is not None:
            after = Prediction(d.step_ns, last.step_ns, last.low_ns, last.high_ns, is_replayed=True)
            limited = screen.record_again is not None or limit(d) is not None
            assert limited or not after.is_narrow, "cards whose savings are stated have a step"
    stated = [card.prediction for card in screen.cards if card.prediction is not None and card.prediction.is_promise]
    if screen.after is not None and not screen.is_measured:
        assert len(stated) == len(ids), "cards of a possible step state what they save"
        total = sum(found.saves_ns for found in stated)
        assert d.step_ns - total == pytest.approx(screen.after.after_ns, abs=1), "savings add up to the possible step"
    if d.waterfall is not None:
        assert d.waterfall.forecasts[0].step_ns == pytest.approx(d.step_ns)
        assert all(after.step_ns < before.step_ns for before, after in pairwise(d.waterfall.forecasts))


def places(d):
    """Check that a place is a line of the user's, or an operator."""
    shown = [where for finding in d.findings for where in finding.where]
    shown += [card.where for card in answer(d).cards if card.where is not None]
    assert [w for w in shown if w.file and not (w.line and is_user_file(w.file))] == []
    assert [w for w in shown if not (w.file or w.op or w.library)] == []


CHECKS = (true_step, ranking, possible_step, places)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_of_fixtures(folder):
    d = analyze_paths([folder])
    for check in CHECKS:
        check(d)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_of_recorded_traces(recorded, extent, check):
    assert {name: why for name in recorded.of(extent, second=True) if (why := failure(check, recorded, name))} == {}


def failure(check, recorded, name):
    """Return why a check fails for a trace, "" where it holds."""
    d = recorded.diagnoses[name]
    try:
        check(d)
    except AssertionError as error:
        return str(error)[:400]
    return ""

"""The cards and the possible step: one change for each finding, in their order, and the replay of exactly these."""

import math
from dataclasses import replace

import pytest

from diagnose.answer.cards import Prediction, late_rank, predictions
from diagnose.answer.screen import answer
from diagnose.model.diagnosis import Finding, Forecast, Trial, Waterfall
from diagnose.model.job import Job

MS = 1_000_000


def shown(d):
    return [card.prescription.id for card in answer(d).cards]


def chain_of(ids, steps, combinations=()):
    """Return the waterfall of changes that make the step this long, one after the other; ms."""
    chain = tuple(Forecast(tuple(ids[:i]), "", ms * MS, ms * MS, ms * MS) for i, ms in enumerate(steps))
    more = tuple(Forecast(tuple(names), "", ms * MS, ms * MS, ms * MS) for names, ms in combinations)
    return Waterfall(chain, "it", {}, more)


@pytest.fixture
def several(forms):
    """Return a diagnosis whose findings a, b, c, … each have a change that leaves the step this long; ms of 20."""

    def made(*steps, combinations=()):
        d, names = forms["gaps"], "abcdefgh"[: len(steps) - 1]
        fixes = tuple(replace(d.prescriptions[0], id=name, rule=f"rule-{name}") for name in names)
        found = tuple(Finding(f"rule-{name}", name, 1.0 * MS) for name in names)
        waterfall = chain_of(names, steps, combinations)
        return replace(d, findings=found, dominant="rule-a", prescriptions=fixes, waterfall=waterfall)

    return made


def test_the_savings_of_the_cards_add_up_to_the_possible_step(forms):
    each = predictions(forms["gaps"])
    assert [(p.before_ns / MS, p.after_ns / MS, p.behind) for p in each.values()] == [
        (20, 15, ()), (15, 12, ("data-stall-fix",)),
    ]  # fmt: skip
    a = answer(forms["gaps"])
    assert a.now_ns - sum(card.prediction.saves_ns for card in a.cards) == a.after.after_ns == 12 * MS


def test_three_cards_at_most_come_in_the_order_of_the_findings_whatever_they_save(several):
    """c saves 4.5 ms behind a and b, which save 2 ms and 0.5 ms; the possible step is that of the three."""
    a = answer(several(20, 18, 17.5, 13, 9))
    assert [card.prescription.id for card in a.cards] == ["a", "b", "c"]
    assert [card.finding for card in a.cards] == [1, 2, 3]
    assert (a.after.after_ns, a.num_changes) == (13 * MS, 4)


def test_each_finding_has_one_card(several):
    d = several(20, 18, 16)
    other = replace(d.prescriptions[0], id="other", saves_ns=(9 * MS, 9 * MS))
    assert shown(replace(d, prescriptions=(other, *d.prescriptions))) == ["a", "b"]


def test_a_change_gains_a_hundredth_of_the_step_at_least(several):
    assert shown(several(20, 19.9)) == []
    assert answer(several(20, 19.9)).after is None
    assert shown(several(20, 19.8)) == ["a"]


def test_the_possible_step_is_that_of_the_cards_and_of_no_other_changes(several):
    """A trial refuted b: what a and c save together is only stated if just these were replayed."""
    slower = Trial("b", (20.0,), (22.0,), 0.9, (0.85, 0.95), "identical", ids=("b",))
    d = replace(several(20, 18, 15, 11, combinations=[(("a", "c"), 14)]), trials=(slower,))
    assert shown(d) == ["a", "c"]
    assert answer(d).after.after_ns == 14 * MS
    alone = replace(several(20, 18, 15, 11), trials=(slower,))
    assert shown(alone) == ["a"]
    assert answer(alone).after.after_ns == 18 * MS


def test_what_comes_now_and_then_is_in_the_chain_like_any_other_change(several):
    """A checkpoint takes 6 ms of the mean step of 20 ms: without it 14 ms are left, and 10 ms with the other change."""
    d = several(20, 14, 10)
    rare = replace(d.findings[0], rule="periodic-stall", share=0.3)
    fix = replace(d.prescriptions[0], id="save-in-background", rule="periodic-stall", predicted_step_ns=14 * MS)
    d = replace(d, findings=(rare, d.findings[1]), dominant="periodic-stall", prescriptions=(fix, d.prescriptions[1]))
    a = answer(replace(d, waterfall=chain_of(["save-in-background", "b"], (20, 14, 10))))
    assert [(c.prescription.id, c.prediction.saves_ns / MS) for c in a.cards] == [("save-in-background", 6), ("b", 4)]
    assert a.after.after_ns == 10 * MS


def test_without_a_replay_of_the_cards_no_possible_step_is_shown(forms):
    a = answer(replace(forms["gaps"], waterfall=None))
    assert [card.prediction.saves_ns / MS for card in a.cards] == [pytest.approx(5.8), pytest.approx(2.2)]
    assert a.after is None


def test_the_change_of_the_answer_is_shown_though_nothing_is_predicted_of_it(forms):
    d = forms["gaps"]
    unknown = replace(d.prescriptions[0], predicted_step_ns=None)
    d = replace(d, prescriptions=(unknown, replace(d.prescriptions[1], predicted_step_ns=None)), waterfall=None)
    assert [(card.prescription.id, card.prediction) for card in answer(d).cards] == [("data-stall-fix", None)]
    nothing = replace(unknown, predicted_step_ns=20 * MS, saves_ns=(0.0, 0.0))
    assert shown(replace(d, prescriptions=(nothing,))) == []


def test_a_change_that_saves_less_than_a_hundredth_at_most_has_no_card(forms):
    """The replay leaves it 3 ms after the first change, of a finding that costs 0.1 ms of the 20 ms step."""
    d = forms["gaps"]
    first, second, *_ = d.findings
    d = replace(d, findings=(first, second), recording_estimate=0.3, profiler_overhead=None)
    assert shown(d) == ["data-stall-fix", "host-sync-fix"]
    assert shown(replace(d, findings=(first, replace(second, worth_ns=0.1 * MS)))) == ["data-stall-fix"]


def test_a_line_that_the_title_names_stands_there_only(forms):
    d = forms["gaps"]
    first, second = d.prescriptions
    named = replace(first, title=f"Stop it at {d.findings[0].where[0].file}:{d.findings[0].where[0].line}", edits=())
    a = answer(replace(d, prescriptions=(named, second)))
    assert [card.where is None for card in a.cards] == [True, False]


def test_below_the_floor_there_are_no_cards(forms):
    assert shown(replace(forms["gaps"], dominant=None)) == []


def test_what_was_measured_takes_the_place_of_what_was_predicted(forms):
    """Measured is 1.42 ×: 20 ms become 14.1 ms; the other change was measured to be slower."""
    a = answer(forms["trials"])
    assert a.is_measured
    assert a.after.after_ns == pytest.approx(20 * MS / 1.42)
    assert [card.prescription.id for card in a.cards] == ["data-stall-fix"]
    assert not answer(replace(forms["trials"], trials=forms["trials"].trials[1:3])).is_measured


def test_what_made_the_step_longer_is_left_out_and_the_rest_counts_without_it(forms):
    d = forms["gaps"]
    slower = Trial("data-stall-fix", (28.2,), (33.3,), 0.87, (0.74, 1.03), "identical", ids=("data-stall-fix",))
    chain = d.waterfall.forecasts
    alone = Forecast(("host-sync-fix",), "", 18 * MS, 18 * MS, 18 * MS)
    waterfall = d.waterfall._replace(combinations=(chain[0], chain[1], alone, chain[2]))
    a = answer(replace(d, trials=(slower,), waterfall=waterfall))
    assert [(card.prescription.id, card.prediction.behind) for card in a.cards] == [("host-sync-fix", ())]
    assert (a.after.after_ns, a.num_changes, a.refuted) == (18 * MS, 1, {"data-stall-fix"})


def test_without_a_replay_of_the_rest_the_changes_before_it_are_promised(forms):
    slower = Trial("host-sync-fix", (28.2,), (33.3,), 0.9, (0.85, 0.95), "identical", ids=("host-sync-fix",))
    a = answer(replace(forms["gaps"], trials=(slower,)))
    assert [card.prescription.id for card in a.cards] == ["data-stall-fix"]
    assert (a.after.after_ns, a.num_changes) == (15 * MS, 1)


@pytest.mark.parametrize("saves", [(math.nan, math.inf), (0.0, math.inf)])
def test_a_number_that_is_none_promises_nothing(forms, saves):
    d = forms["gaps"]
    unknown = replace(d.prescriptions[0], saves_ns=saves)
    assert predictions(replace(d, prescriptions=(unknown,), waterfall=None)) == {}


def test_what_a_change_adds_behind_others_is_not_as_open_as_they_are(forms):
    d = forms["gaps"]
    chain = tuple(
        Forecast(("data-stall-fix", "launch-bound-fix")[:i], "", step * MS, low * MS, high * MS)
        for i, (low, step, high) in enumerate([(20, 20, 20), (12, 15, 18), (10.5, 14, 17.5)])
    )
    fixes = tuple(replace(d.prescriptions[0], id=name) for name in chain[-1].ids)
    each = predictions(replace(d, prescriptions=fixes, waterfall=Waterfall(chain, "it", {})))
    assert each["data-stall-fix"].range_ns == (2 * MS, 8 * MS)
    assert each["launch-bound-fix"].range_ns == (0.5 * MS, 1.5 * MS)


@pytest.mark.parametrize(
    ("low", "after", "high", "replayed", "is_promise", "is_narrow"),
    [
        (12, 15, 18, True, True, True),  # saves 2 to 8 ms: four times
        (11.9, 15, 18, True, False, False),  # more than four times
        (12, 15, 18, False, False, False),  # not replayed
        (2, 5, 8, True, True, True),  # takes 2 to 8 ms afterwards: four times
        (1.9, 5, 8, True, True, False),  # what is saved can be stated, what is left cannot
    ],
)
def test_a_range_wider_than_four_times_is_no_promise(low, after, high, replayed, is_promise, is_narrow):
    found = Prediction(20 * MS, after * MS, low * MS, high * MS, is_replayed=replayed)
    assert (found.is_promise, found.is_narrow) == (is_promise, is_narrow)


@pytest.mark.parametrize(
    ("of_ms", "replayed", "most"),  # of a step of 20 ms, of which it saves 0.4 ms to 10 ms
    [(None, True, 10), (12, True, 10), (7, True, 7), (7, False, 7)],
)
def test_at_most_a_change_saves_what_the_step_does_without_its_finding(of_ms, replayed, most):
    of_ns = None if of_ms is None else of_ms * MS
    found = Prediction(20 * MS, 15 * MS, 10 * MS, 19.6 * MS, is_replayed=replayed, of_ns=of_ns)
    assert found.most_ns == most * MS


@pytest.mark.parametrize(
    ("low", "after", "high", "factor"),
    [
        (8, 10, 16, (1.25, 2.0, 2.5)),
        (3.4, 10, 16, (1.25, 2.0, 20 / 3.4)),
        (3.3, 10, 16, (1.25, 2.0, math.inf)),  # beyond three times the predicted factor it is open
        (0, 10, 16, (1.25, 2.0, math.inf)),
        (18, 18, 20, (1.0, pytest.approx(1.11, abs=0.01), pytest.approx(1.11, abs=0.01))),
        (18, 18.2, 20, None),  # less than 1.1 ×
        (0, 0, 10, None),
    ],
)
def test_how_many_times_faster_the_step_becomes(forms, low, after, high, factor):
    found = replace(answer(forms["gaps"]), after=Prediction(20 * MS, after * MS, low * MS, high * MS))
    assert found.factor == factor


def test_the_card_for_the_late_ranks_own_finding_names_the_rank(forms):
    d = replace(forms["ranks"], job=Job(4, 12, 0.0, (7,), late_ranks=(3,), cause="data-stall"))
    assert [(card.prescription.id, card.rank) for card in answer(d).cards] == [
        ("data-stall-fix", 3), ("host-sync-fix", None),
    ]  # fmt: skip
    assert late_rank(replace(d, job=d.job._replace(late_ranks=(), taking_turns=(1, 2)))) is None


def test_the_card_for_a_rank_that_begins_late_stands_where_its_finding_does(forms):
    d = replace(forms["ranks"], job=Job(4, 12, 0.0, (7,), begins_late=1, begins_late_ns=8 * MS))
    finding = Finding("straggler", "Rank 1 begins its step late", 8 * MS, worth_ns=8 * MS)
    fix = replace(d.prescriptions[0], rule="straggler", id="even-out-ranks", saves_ns=(0, 8 * MS), basis="bound")
    fix = replace(fix, predicted_step_ns=None)
    d = replace(d, dominant="straggler", findings=(finding, *d.findings), prescriptions=(*d.prescriptions, fix))
    assert [(card.prescription.id, card.rank) for card in answer(d).cards] == [
        ("even-out-ranks", 1), ("data-stall-fix", None), ("host-sync-fix", None),
    ]  # fmt: skip


@pytest.mark.parametrize(("worth", "is_uncovered"), [(2.7, True), (2.8, False), (3.0, False), (5.0, False)])
def test_changes_before_it_may_uncover_more_of_a_finding(forms, worth, is_uncovered):
    """The second change saves 3 ms after the first one: a ninth more than 2.7 ms."""
    d = forms["gaps"]
    d = replace(d, findings=(d.findings[0], replace(d.findings[1], worth_ns=worth * MS)))
    found = predictions(d)["host-sync-fix"]
    assert found.is_uncovered == is_uncovered


def test_a_recording_that_limits_predictions_shows_at_most_what_is_saved(forms):
    """One rank of eight: what the same steps save at least is not known."""
    d = forms["gaps"]
    limited = answer(replace(d, source=replace(d.source, world_size=8)))
    assert [card.prediction.is_promise for card in answer(d).cards] == [True, True]
    for each in (limited.each, answer(replace(d, waterfall=None, source=replace(d.source, world_size=8))).each):
        assert [p.is_promise for p in each.values()] == [False] * 2


def test_a_change_for_a_finding_without_worth_has_no_prediction(forms):
    d = replace(forms["gaps"], waterfall=None)
    assert "host-sync-fix" in predictions(d)
    worthless = replace(d.findings[1], worth_ns=0.0)
    assert predictions(replace(d, findings=(d.findings[0], worthless))).keys() == {"data-stall-fix"}
    assert predictions(replace(d, findings=())).keys() == {"data-stall-fix", "host-sync-fix"}

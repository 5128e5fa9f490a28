"""What is run, and what is predicted of it."""

from types import SimpleNamespace

import pytest

from diagnose.model.diagnosis import Prescription
from diagnose.trials.candidates import NOT_COMPILED, announced, candidates, not_run


def diagnosed(saves, step=10.0):
    schedule = Prescription("gc-pause", "schedule-gc", "Collect less", "", "", saves, step - sum(saves) / 2, "same")
    return SimpleNamespace(to_try=(), prescriptions=(schedule,), step_ns=step, queue=None)


@pytest.mark.parametrize(("saves", "then"), [((5.0, 7.0), 0.4), ((10.0, 14.0), 0.0)])
def test_the_step_then_is_a_share_of_the_step_and_no_less_than_none(saves, then):
    (candidate,) = candidates(diagnosed(saves), ())
    assert candidate.predicted_ratio == pytest.approx(then)


def test_nothing_is_predicted_of_what_was_not_prescribed():
    schedule, sham = candidates(diagnosed((5.0, 7.0)), ("sham", "schedule-gc"))
    assert (sham.predicted_ratio, sham.title) == (None, "Change nothing (a control)")
    assert schedule.predicted_ratio == pytest.approx(0.4)


def prescribed(name, saves, predicted=True, **fields):
    return Prescription(
        "rule", name, name, "", "", saves, 10e6 - sum(saves) / 2 if predicted else None, "same", **fields
    )


@pytest.mark.parametrize("turned", [False, True])
def test_trials_go_by_predicted_saving_and_what_is_not_predicted_comes_last(turned):
    """Order of the report plays no part, nor whether a cause is in each step or in one of many."""
    listed = [
        prescribed("schedule-gc", (1e6, 2e6)),  # 0.85 of the step is left
        prescribed("fused-optimizer", (4e6, 6e6)),  # 0.5
        prescribed("save-in-background", (1e6, 4e6), mean_step_ns=10e6),  # 0.75
        prescribed("keep-workers", (0.0, 9e6), predicted=False),
    ]
    diagnosis = SimpleNamespace(
        to_try=(), prescriptions=tuple(reversed(listed) if turned else listed), step_ns=10e6, queue=None
    )
    expected = ["fused-optimizer", "save-in-background", "schedule-gc", "keep-workers"]
    assert [c.id for c in candidates(diagnosis, (), edits=True)] == expected
    assert [c.id for c in candidates(diagnosis, ("sham", *sorted(expected)))] == [*expected[:3], "sham", "keep-workers"]


def test_what_only_the_author_can_write_is_not_run():
    workers = Prescription(
        "data-stall", "load-in-workers", "Load", "", "", (0.0, 5e6), 8e6, "same", arguments={"by_hand": "it is theirs"}
    )
    diagnosis = SimpleNamespace(to_try=(), prescriptions=(workers,), step_ns=10e6, queue=None)
    (candidate,) = candidates(diagnosis, ())
    assert candidate.skip_reason == "It is yours to make: it is theirs."


def test_a_card_that_no_trial_can_make_is_named_first_and_what_is_smaller_as_such():
    listed = (
        prescribed("fused-optimizer", (1e6, 2e6)),
        prescribed("group-lengths", (4e6, 6e6)),
        prescribed("vectorise-loop", (1e6, 1e6)),
        prescribed("schedule-gc", (2e6, 3e6)),
    )
    diagnosis = SimpleNamespace(to_try=(), prescriptions=listed, step_ns=10e6, queue=None)
    chosen = candidates(diagnosis, (), edits=True, cards=("group-lengths", "schedule-gc"))
    assert list(announced(chosen)) == [
        "not trying change 1: group-lengths. It is yours to make.",
        "trying change 2: schedule-gc",
        "trying fused-optimizer, which is not on the first screen: fused-optimizer",
    ]
    assert [c.id for c in candidates(diagnosis, (), edits=True, diffs={"group-lengths"}) if not c.skip_reason] == [
        "group-lengths", "schedule-gc", "fused-optimizer",
    ]  # fmt: skip


def test_the_author_s_own_edit_is_a_candidate():
    (own,) = candidates(diagnosed((5.0, 7.0)), ("own-edit",), edits=True)
    assert (own.title, own.skip_reason) == ("Your edit of the script", "")
    assert list(announced([own])) == ["trying your edit"]


def test_that_nothing_compiles_is_said_unless_other_changes_were_asked_for():
    def listed(*names):
        return SimpleNamespace(to_try=(), prescriptions=tuple(prescribed(name, (1e6, 2e6)) for name in names))

    assert not_run(listed("fused-optimizer")) == (NOT_COMPILED,)
    assert not_run(listed("fused-optimizer"), ("fused-optimizer",)) == ()
    assert not_run(listed("fused-optimizer", "compile-model")) == ()
    (why, _) = not_run(listed("cheaper-sample"))
    assert why == "cheaper-sample was not run: no trial can apply it."


def test_a_setting_that_only_a_trial_judges_is_tried_and_named_as_it_is_set():
    d = SimpleNamespace(to_try=("autocast", "one-thread"), prescriptions=(), step_ns=10e6, queue=None)
    assert [(c.id, c.title) for c in candidates(d, ())] == [("one-thread", "Set OMP_NUM_THREADS=1")]
    assert [c.id for c in candidates(d, ("sham",))] == ["sham"]

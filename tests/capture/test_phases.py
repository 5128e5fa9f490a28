"""Phases of a step follow from events; times in ms on a clock that the test moves."""

import io
import sys
import threading

import pytest
import torch
from torch.distributions import Categorical, OneHotCategorical

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.listener import Listener
from diagnose.capture.steps.phases import Phases, PhaseTimes, watch_gradients, watch_saves


class Step:
    """A script's events, each at the time that has passed."""

    def __init__(self):
        self.now = 1
        self.phases = Phases(lambda: self.now)
        self.phases.begin()

    def passes(self, time):
        self.now += time
        return self

    def loads(self, time, numbers=64):
        self.phases.loading(True)
        self.passes(time)
        self.phases.loading(False)
        self.phases.batch(numbers)
        return self

    def infers(self, time):
        self.phases.gradients_off(True)
        self.passes(time)
        self.phases.gradients_off(False)
        return self

    def evaluates(self, *what):
        self.phases.mode(False)
        for part in what:
            part(self)
        self.phases.mode(True)
        return self

    def saves(self, time):
        self.phases.saving(True)
        self.passes(time)
        self.phases.saving(False)
        return self

    def trains(self, time):
        self.passes(time)
        self.phases.backward()
        return self.passes(time)

    def taken(self):
        times = self.phases.take()
        self.phases.begin()
        return times


def times(**known):
    return PhaseTimes(**known)


@pytest.fixture
def step():
    return Step()


def test_a_step_of_training(step):
    assert step.loads(5).trains(10).taken() == times(loading=5, backwards=1, work=64)


def test_a_rollout_holds_the_environment_between_the_policy_s_calls(step):
    for _ in range(6):
        step.infers(2).passes(8)
    assert step.trains(10).taken() == times(rollout=52, backwards=1, work=6)  # 6 × 2 + 5 × 8


def test_a_teacher_or_generation_counts_alone(step):
    assert step.passes(5).infers(20).trains(10).taken() == times(inference=20, backwards=1, work=1)


def test_an_average_of_the_weights_belongs_to_the_update_before_the_next_batch(step):
    assert step.infers(20).loads(5).infers(6).trains(10).taken() == times(
        inference=6, other=20, loading=5, backwards=1, work=64
    )


def test_what_is_computed_without_gradients_after_the_backward_pass_is_training(step):
    assert step.trains(10).infers(7).taken() == times(backwards=1)


def test_an_evaluation_is_what_lies_between_eval_and_train(step):
    step.evaluates(lambda s: s.loads(3).infers(4), lambda s: s.loads(3).infers(4))
    assert step.loads(5).trains(10).taken() == times(evaluation=14, loading=5, backwards=1, work=64)


def test_a_module_that_stays_in_evaluation_mode_while_others_train_is_not_evaluated(step):
    step.phases.mode(False)
    step.trains(10).taken()
    step.loads(5).trains(10)
    step.phases.mode(True)
    assert step.taken() == times(loading=5, backwards=1, work=64)


def test_an_evaluation_that_forgets_eval(step):
    for _ in range(5):
        step.loads(1).infers(4)
    assert step.trains(10).taken() == times(evaluation=20, loading=5, backwards=1, work=320)


def test_checkpoints_and_what_follows_the_update(step):
    assert step.passes(3).saves(40).loads(5).trains(10).taken() == times(
        checkpoint=40, other=3, loading=5, backwards=1, work=64
    )


def test_an_evaluation_goes_on_over_a_boundary(step):
    step.phases.mode(False)
    assert step.passes(7).taken() == times(evaluation=7)
    assert step.passes(8).taken() == times(evaluation=8)


def test_actions_drawn_with_gradients_on_make_a_rollout():
    step = Step()
    undo = watch_gradients(step.phases.gradients_off)
    try:
        for _ in range(6):
            step.passes(2)
            OneHotCategorical(torch.ones(2)).sample()  # which samples a Categorical: one draw
            step.passes(8)
    finally:
        undo()
    assert step.trains(10).taken() == times(rollout=52, backwards=1, work=6)


def test_a_target_network_that_follows_is_no_rollout():
    """Loading a state switches gradients off for each of six tensors: torch does, not the script."""
    listener = Listener("auto", ScriptConfig(), lambda _fresh: None)
    policy, target = (torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3))) for _ in range(2))
    undo = watch_gradients(listener._gradients_off)
    try:
        target.load_state_dict(policy.state_dict())
        assert listener.phases.take().work == 0
        with torch.no_grad():
            target(torch.ones(2))
        assert listener.phases.take().work == 1
    finally:
        undo()
        listener.remove()


def test_a_draw_compiles_as_one_graph():
    seen = []
    undo = watch_gradients(seen.append)
    try:
        draw = torch.compile(lambda x: Categorical(x, validate_args=False).sample(), backend="eager", fullgraph=True)
        assert draw(torch.ones(2)).shape == ()
    finally:
        undo()
    assert seen == []


@pytest.fixture
def saves(tmp_path, monkeypatch):
    """What is reported of calls that save, with libraries that are imported after the hook."""
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("")
    (tmp_path / "safetensors" / "torch.py").write_text(
        "def save_file(state, path):\n    seen.append(path)\nseen = []\n"
    )
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "modeling_utils.py").write_text(
        "from safetensors.torch import save_file\n"
        "class PreTrainedModel:\n"
        "    def save_pretrained(self, folder):\n"
        "        save_file({}, folder)\n"
        "        save_file({}, folder)\n"
        "        return folder\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    libraries = [name for name in sys.modules if name.partition(".")[0] in ("safetensors", "transformers")]
    for name in libraries:
        monkeypatch.delitem(sys.modules, name)
    switched = []
    undo = watch_saves(switched.append)
    yield switched
    undo()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("safetensors", "transformers")]:
        del sys.modules[name]


def test_checkpoints_of_libraries_count_as_those_of_torch(saves, tmp_path):
    torch.save({}, tmp_path / "state.pt")
    assert saves == [True, False]
    from safetensors.torch import save_file, seen  # as a script does, after the hooks

    save_file({}, "weights")
    assert (saves, seen) == ([True, False] * 2, ["weights"])


def test_a_save_within_a_save_belongs_to_it(saves):
    from transformers.modeling_utils import PreTrainedModel

    assert PreTrainedModel().save_pretrained("folder") == "folder"
    assert saves == [True, False]  # of two files


def test_a_save_that_fails_is_over(saves, tmp_path):
    with pytest.raises(RuntimeError):
        torch.save({}, tmp_path / "none" / "state.pt")
    torch.save({}, tmp_path / "state.pt")
    assert saves == [True, False] * 2


def test_a_save_of_another_thread_is_no_part_of_one(saves, monkeypatch):
    from safetensors import torch as library

    other = threading.Thread(target=library.save_file, args=({}, "other"))

    class Slow:
        def __reduce__(self):
            other.start()
            other.join()
            return (int, ())

    torch.save(Slow(), io.BytesIO())
    assert saves == [True, True, False, False]


def test_hooks_of_savers_are_removed():
    original, finders = torch.save, list(sys.meta_path)
    watch_saves(lambda _begins: None)()
    assert torch.save is original
    assert sys.meta_path == finders

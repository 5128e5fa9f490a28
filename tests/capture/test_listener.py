"""What the listener takes for the end of a step, and what it does not."""

import pytest

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.listener import Listener


class Module:
    """As much of a module as the listener asks for."""

    def __init__(self, num_parameters):
        self.num = num_parameters

    def parameters(self):
        return iter(range(self.num))

    def buffers(self):
        return iter(())


class Dataset:
    def __init__(self, call):
        self.call = call

    def __getitem__(self, _index):
        self.call()


@pytest.fixture
def listening():
    ended = []
    listener = Listener("auto", ScriptConfig(), ended.append)
    yield listener, ended
    listener.remove()


def test_calls_within_a_loader_end_no_step(listening):
    listener, ended = listening
    model, encoder = Module(2), Module(2)
    for _ in range(4):
        listener._loads(True)
        for _ in range(8):
            listener._called(encoder)
        listener._loads(False)
        listener._called(model)
    assert len(ended) == 3  # from the second call of the model on


@pytest.mark.parametrize("kind", ["transform", "dataset"])
def test_modules_that_prepare_data_end_no_step(listening, kind):
    listener, ended = listening
    model, encoder = Module(2), Module(0 if kind == "transform" else 2)
    load = lambda: listener._called(encoder)
    for _ in range(4):
        for _ in range(32):
            load() if kind == "transform" else Dataset(load)[0]
        listener._called(model)
    assert (listener.choice.chosen, len(ended)) == ("forward", 3)


def test_modules_without_parameters_are_steps_where_nothing_else_is(listening):
    listener, ended = listening
    activation = Module(0)
    for _ in range(512):
        listener._called(activation)
    assert not ended
    for _ in range(3):
        listener._called(activation)
    assert (listener.choice.chosen, len(ended)) == ("forward", 2)


def test_a_loader_within_a_dataset_delivers_no_batch_of_the_script(listening):
    listener, ended = listening

    class Iterator:
        def __init__(self, dataset):
            self._dataset = dataset

    outer, inner = Iterator([0]), Iterator([1])
    for _ in range(4):
        listener._loads(True)
        for _ in range(8):
            listener._loads(True)
            listener._loads(False)
            listener._batch_delivered(inner, [])
        listener._loads(False)
        listener._batch_delivered(outer, [])
    assert len(ended) == 3

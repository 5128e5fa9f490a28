"""Which calls of modules compute the same again, as the capture compares them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from diagnose.capture.record.repeated_calls import RepeatedCalls

NET = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
X = torch.arange(8.0).view(2, 4)


def repeats(work):
    """Return the outermost modules and their numbers of calls that were found to be the same."""
    watch = RepeatedCalls()
    watch.start()
    try:
        work()
    finally:
        watch.stop()
    assert "_watched" not in nn.Module._call_impl.__qualname__
    return sorted((each.module, len(each.began_ns)) for each in watch.repeats() if each.module != "Linear")


def called_on(*inputs, net=NET):
    return lambda: [net(x) for x in inputs]


def test_equal_values_are_the_same_whatever_tensor_holds_them():
    assert repeats(called_on(X, X.clone(), X[:, :])) == [("Sequential", 3), ("Tanh", 3)]


def test_a_larger_tensor_is_the_same_only_as_itself():
    large = torch.ones(1 << 19)
    same, other = nn.Dropout(0.0).eval(), nn.Identity()
    del same
    assert repeats(called_on(large, large, net=other)) == [("Identity", 2)]
    assert repeats(called_on(large, large.clone(), net=other)) == []


def written(change):
    def work():
        x, net = X.clone(), nn.Linear(4, 4)
        wrapped = nn.Sequential(net)
        wrapped(x)
        with torch.no_grad():
            change(x, net, wrapped)
        wrapped(x)

    return work


@pytest.mark.parametrize(
    "change",
    [
        lambda x, net, wrapped: x.add_(1),
        lambda x, net, wrapped: x.numpy().__iadd__(1),  # no version counts it
        lambda x, net, wrapped: net.weight.add_(1),
        lambda x, net, wrapped: net.weight.data.add_(1),
        lambda x, net, wrapped: wrapped.eval(),
        lambda x, net, wrapped: setattr(net, "scale", 2.0),  # as an adapter that is switched off
        lambda x, net, wrapped: net.register_forward_hook(lambda *_: None),
    ],
)
def test_what_has_changed_in_between_makes_another_call(change):
    assert repeats(written(change)) == []


def test_an_input_that_a_gradient_is_taken_of_is_another_than_its_detached_values():
    x = X.clone().requires_grad_()
    assert repeats(called_on(x, x.detach())) == []
    with torch.no_grad():
        assert repeats(called_on(x, x.detach())) == [("Sequential", 2), ("Tanh", 2)]


def test_the_line_is_noted_that_calls_it_again():
    watch = RepeatedCalls()
    watch.start()
    try:
        NET(X)
        NET(X)  # again
    finally:
        watch.stop()
    (found,) = [each for each in watch.repeats() if each.module == "Sequential"]
    first, (file, line, function) = found.places
    assert first == ("", 0, "")
    assert (file, function) == (__file__, "test_the_line_is_noted_that_calls_it_again")
    assert Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip() == "NET(X)  # again"


def test_what_draws_random_numbers_is_not_the_same():
    assert repeats(called_on(X, X, net=nn.Sequential(nn.Dropout(0.5)))) == []


class Noise(nn.Module):
    def forward(self, x):
        return x + float(np.random.standard_normal())


def test_nor_is_what_draws_from_numpy():
    assert repeats(called_on(X, X, net=Noise())) == []


def test_a_part_that_the_backward_pass_computes_again_is_checkpointing():
    from torch.utils.checkpoint import checkpoint

    def work():
        x = X.clone().requires_grad_()
        checkpoint(NET, x, use_reentrant=False).sum().backward()

    assert repeats(work) == []


def test_running_means_are_not_read_in_training():
    net = nn.Sequential(nn.BatchNorm1d(4))
    assert ("Sequential", 2) in repeats(called_on(X, X, net=net))
    assert ("Sequential", 2) in repeats(called_on(X, X, net=net.eval()))


def test_what_cannot_be_compared_is_called_as_ever():
    class Graph(nn.Module):
        def forward(self, graph):
            return graph

    assert repeats(called_on(object(), object(), net=Graph())) == []


def test_what_a_stack_of_anomaly_detection_takes_is_measured():
    watch = RepeatedCalls()
    for is_on in (False, True):
        watch.start()
        with torch.autograd.set_detect_anomaly(is_on):
            NET(X)
        watch.stop()
        assert (watch.stack_ns > 0) is is_on

import math

import pytest
import torch

from diagnose.kernels import deferred_metrics as module
from diagnose.kernels.deferred_metrics import DeferredMetrics


class SlowEvent:
    """Stands for a device's event; it is over when the test says so."""

    def __init__(self):
        self.is_over, self.waits = False, 0

    def query(self):
        return self.is_over

    def synchronize(self):
        self.waits += 1
        self.is_over = True


@pytest.fixture
def events(monkeypatch):
    """Treat the CPU as a device with events, which stay unfinished."""
    made = []

    def event(device):
        made.append(SlowEvent())
        return made[-1]

    monkeypatch.setattr(module, "WITH_EVENTS", frozenset({"cpu"}))
    monkeypatch.setattr(module, "_event", event)
    monkeypatch.setattr(module, "_copied", lambda stack: stack)
    return made


def test_values_arrive_one_step_later_and_the_rest_at_the_end():
    metrics = DeferredMetrics()
    seen = []
    for step in range(3):
        metrics.push(step, loss=torch.tensor(step / 3), lr=0.1)
        seen.append(list(metrics.ready()))
    assert seen == [
        [],
        [(0, {"loss": 0.0, "lr": 0.1})],
        [(1, {"loss": torch.tensor(1 / 3).item(), "lr": 0.1})],
    ]
    assert list(metrics.drain()) == [(2, {"loss": torch.tensor(2 / 3).item(), "lr": 0.1})]
    assert len(metrics) == 0
    assert metrics.latest == {"loss": torch.tensor(2 / 3).item(), "lr": 0.1}


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(1 / 3, dtype=torch.float64),
        torch.tensor(1 / 3, dtype=torch.bfloat16),
        torch.tensor(2**53 + 1),
        torch.tensor(True),
        torch.tensor(1 + 2j),
        torch.tensor(math.inf),
    ],
)
def test_every_dtype_is_exact(value):
    metrics = DeferredMetrics()
    metrics.push(0, value=value, other=torch.tensor(1.0))
    [(_, values)] = metrics.drain()
    assert values["value"] == value.item()
    assert type(values["value"]) is type(value.item())
    assert list(values) == ["value", "other"]


def test_tensor_may_change_after_it_was_pushed():
    total = torch.zeros(())
    metrics = DeferredMetrics()
    for step in range(3):
        total += 1
        metrics.push(step, total=total)
    assert [values["total"] for _, values in metrics.drain()] == [1.0, 2.0, 3.0]


def test_gradients_are_not_kept():
    weight = torch.ones(3, requires_grad=True)
    metrics = DeferredMetrics()
    metrics.push(0, loss=(weight * 2).sum(), norms=weight)
    [(_, values)] = metrics.drain()
    assert values["loss"] == 6.0
    assert not values["norms"].requires_grad
    assert values["norms"].tolist() == [1.0, 1.0, 1.0]


def test_values_of_one_kind_travel_together(monkeypatch):
    copied = []
    monkeypatch.setattr(module, "_copied", lambda stack: copied.append(stack.shape) or stack)
    metrics = DeferredMetrics()
    metrics.push(0, a=torch.tensor(1.0), n=torch.tensor(7), b=torch.tensor(2.0), v=torch.zeros(5))
    assert sorted(map(tuple, copied)) == [(1,), (1, 5), (2,)]
    [(_, values)] = metrics.drain()
    assert (values["a"], values["b"], values["n"]) == (1.0, 2.0, 7)


def test_ready_does_not_wait_for_the_device(events):
    metrics = DeferredMetrics(max_pending=3)
    for step in range(3):
        metrics.push(step, loss=torch.tensor(float(step)))
        assert list(metrics.ready()) == []
    events[0].is_over = True
    assert [step for step, _ in metrics.ready()] == [0]
    events[2].is_over = True  # a later one does not overtake
    assert list(metrics.ready()) == []
    assert [event.waits for event in events] == [1, 0, 0]  # the one wait was for an event that was over


def test_the_oldest_is_waited_for_when_too_many_are_in_flight(events):
    metrics = DeferredMetrics(max_pending=2)
    for step in range(3):
        metrics.push(step, loss=torch.tensor(float(step)))
    assert [step for step, _ in metrics.ready()] == [0]
    assert [step for step, _ in metrics.drain()] == [1, 2]


def test_wrong_values_are_named():
    with pytest.raises(TypeError, match="The metric 'loss' is a str"):
        DeferredMetrics().push(0, loss="0.3")
    with pytest.raises(ValueError, match="max_pending >= 1"):
        DeferredMetrics(max_pending=0)


def test_same_numbers_as_item_in_a_training_loop():
    def train(log):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            loss = model(torch.full((8, 4), float(step))).square().mean()
            loss.backward()
            log(step, loss)
            optimizer.step()
            optimizer.zero_grad()

    plain, metrics, deferred = [], DeferredMetrics(), []

    def push(step, loss):
        metrics.push(step, loss=loss)
        deferred.extend(metrics.ready())

    train(lambda step, loss: plain.append((step, {"loss": loss.item()})))
    train(push)
    assert [*deferred, *metrics.drain()] == plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_waits():
    torch.cuda.set_sync_debug_mode("error")  # any synchronising call raises
    try:
        metrics = DeferredMetrics()
        for step in range(20):
            torch.cuda._sleep(1_000_000)
            metrics.push(step, loss=torch.full((), step, device="cuda"), norm=torch.full((), 0.5, device="cuda"))
            list(metrics.ready())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    rest = list(metrics.drain())
    assert rest[-1] == (19, {"loss": 19, "norm": 0.5})


def test_values_come_in_the_order_of_the_push():
    metrics = DeferredMetrics()
    metrics.push(1, b=torch.tensor(2.0), a=1.0, c=torch.tensor([1, 2]), d=torch.tensor(3.0))
    ((_, values),) = metrics.drain()
    assert list(values) == ["b", "a", "c", "d"]

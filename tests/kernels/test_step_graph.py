import copy

import pytest
import torch
from torch import nn

from diagnose.kernels.step_graph import StepGraph


class Tape:
    """A device that records the step and repeats it into the same memory, as a CUDA graph does."""

    def __init__(self, error=None):
        self.events, self.error = [], error

    def warm(self, run):
        self.events.append("warm")
        return run()

    def capture(self, run):
        self.events.append("capture")
        if self.error:
            raise self.error
        outputs = {"loss": torch.empty(())}

        def replay():
            self.events.append("replay")
            outputs["loss"].copy_(run()["loss"])

        return replay, outputs


def training(seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch, gain=1.0):
        optimizer.zero_grad()
        loss = (model(batch["x"]) * gain - batch["y"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    return model, step


def batches(count=8, rows=4):
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(rows, 3, generator=generator), "y": torch.ones(rows, 1), "name": "train"}
        for _ in range(count)
    ]


def test_trains_as_the_plain_step_does():
    (model, step), (plain, plain_step) = training(), training()
    tape = Tape()
    graph = StepGraph(step, "cpu", recorder=tape, warm_up=3)
    losses = [graph(batch)["loss"] for batch in batches()]
    expected = [plain_step(batch)["loss"] for batch in batches()]
    assert losses == expected, "a result was overwritten, or a batch was not copied"
    assert torch.equal(model.weight, plain.weight)
    assert tape.events == ["warm"] * 3 + ["capture"] + ["replay"] * 5
    assert (graph.calls, graph.replays, graph.eager, graph.reason) == (8, 5, 0, None)


class Once(Tape):
    """Records the step and repeats nothing."""

    def capture(self, run):
        return lambda: None, run()


def test_what_is_captured_reads_memory_of_the_device():
    seen = []

    def step(x):
        seen.append(x.device.type)
        return x.clone()

    graph = StepGraph(step, "meta", recorder=Once(), warm_up=1)
    for _ in range(3):
        graph(torch.ones(2))  # on the host
    assert seen == ["cpu", "meta"]
    assert graph.replays == 2


def test_batches_that_do_not_fit_run_eagerly():
    (model, step), (plain, plain_step) = training(), training()
    tape = Tape()
    graph = StepGraph(step, "cpu", recorder=tape, warm_up=1)
    odd = [*batches(3), *batches(1, rows=2), {**batches(1)[0], "name": "test"}, *batches(1)]
    wide = {**batches(1)[0], "y": torch.ones(4, 1, dtype=torch.float64)}
    for batch in [*odd, wide]:
        assert graph(batch)["loss"] == plain_step(batch)["loss"]
    assert torch.equal(model.weight, plain.weight)
    assert (graph.replays, graph.eager) == (3, 3)


def test_other_arguments_are_part_of_the_graph():
    _, step = training()
    graph = StepGraph(step, "cpu", recorder=Tape(), warm_up=1)
    for gain in (1.0, 1.0, 2.0, 1.0):
        graph(batches(1)[0], gain)
    assert (graph.replays, graph.eager) == (2, 1)


def test_the_callers_tensors_stay_its_own():
    graph = StepGraph(training()[1], "cpu", recorder=Tape(), warm_up=1)
    given = batches(4)
    copies = copy.deepcopy(given)
    for batch in given:
        graph(batch)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(given, copies, strict=True))


def test_a_step_that_cannot_be_captured_goes_on_eagerly():
    (model, step), (plain, plain_step) = training(), training()
    tape = Tape(RuntimeError("operation not permitted when stream is capturing\nmore"))
    graph = StepGraph(step, "cpu", recorder=tape, warm_up=1)
    for batch in batches(4):
        assert graph(batch)["loss"] == plain_step(batch)["loss"]
    assert torch.equal(model.weight, plain.weight)
    assert graph.eager == 3
    assert tape.events.count("capture") == 1
    assert graph.reason == (
        "the step cannot be captured (RuntimeError: operation not permitted when stream is capturing)"
    )


def test_on_a_cpu_the_step_runs_as_it_is():
    model, step = training()
    graph = StepGraph(step, "cpu")
    before = model.weight.clone()
    graph(batches(1)[0])
    assert not torch.equal(model.weight, before)
    assert graph.reason == "CUDA graphs need a CUDA device, not cpu"
    assert graph.eager == 1


def test_optimizers_that_count_on_the_host_are_refused():
    model, step = training()
    adam = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"make it AdamW\(..., capturable=True\)"):
        StepGraph(step, "cpu", optimizers=[adam], recorder=Tape())
    StepGraph(step, "cpu", optimizers=[adam])  # nothing is captured there
    with pytest.raises(ValueError, match="warm_up >= 1, not 0; with DDP it should be 11"):
        StepGraph(step, "cpu", warm_up=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW])
def test_on_a_gpu(cls):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
        extra = {"capturable": True} if cls is torch.optim.AdamW else {}
        optimizer = cls(model.parameters(), lr=0.01, **extra)

        def step(x, y):
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    (model, optimizer, step), (plain, _, plain_step) = build(), build()
    graph = StepGraph(step, "cuda", optimizers=[optimizer])
    for batch in batches(12):
        x, y = batch["x"].cuda(), batch["y"].cuda()
        torch.testing.assert_close(graph(x, y), plain_step(x, y))
    assert graph.replays == 9
    assert graph.reason is None
    torch.testing.assert_close(model[0].weight, plain[0].weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_synchronising_step_falls_back_on_a_gpu():
    graph = StepGraph(lambda x: x * x.sum().item(), "cuda", warm_up=1)
    x = torch.ones(3, device="cuda")
    for _ in range(3):
        assert torch.equal(graph(x), torch.full((3,), 3.0, device="cuda"))
    assert "cannot be captured" in graph.reason

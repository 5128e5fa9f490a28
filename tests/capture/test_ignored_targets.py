"""Which targets of cross entropies are ignored, as the capture counts them."""

import gc
import inspect
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from diagnose.capture.record import ignored_targets
from diagnose.capture.record.ignored_targets import IgnoredTargets
from diagnose.pipeline.run import analyze_paths

LOGITS = torch.randn(4, 8)
TARGETS = torch.tensor([1, -100, -100, 7])


def seen(work):
    """Return classes, targets and ignored ones of the calls that a piece of work makes."""
    watch = IgnoredTargets()
    watch.start()
    try:
        work()
    finally:
        watch.stop()
    return [(each.classes, each.targets, each.ignored) for each in watch.records()]


def test_the_targets_of_each_call_are_counted():
    def work():
        for targets in (TARGETS, torch.tensor([-100, 2, 3, 4])):
            functional.cross_entropy(LOGITS, targets)

    assert seen(work) == [(8, (4, 4), (2, 1))]


@pytest.mark.parametrize(
    "loss",
    [
        lambda: nn.CrossEntropyLoss(ignore_index=7, reduction="sum")(LOGITS, TARGETS.clamp(min=0)),
        lambda: functional.nll_loss(LOGITS.log_softmax(-1), TARGETS.clamp(min=0), ignore_index=7),
        lambda: functional.cross_entropy(LOGITS.view(2, 2, 8).mT, TARGETS.view(2, 2).clamp(min=0), ignore_index=7),
        lambda: functional.cross_entropy(LOGITS, torch.tensor([[1, 7], [2, 7], [3, 7], [7, 1]])[:, 0], ignore_index=7),
    ],
)
def test_every_form_of_the_loss_is_seen_with_its_own_ignore_index(loss):
    assert seen(loss) == [(8, (4,), (1,))]


@pytest.mark.parametrize(
    "loss",
    [
        lambda: functional.cross_entropy(LOGITS, torch.tensor([1, 2, 3, 4])),  # none is ignored
        lambda: functional.cross_entropy(LOGITS, LOGITS.softmax(-1)),  # probabilities
        lambda: functional.cross_entropy(LOGITS[0], TARGETS[0]),  # no rows
        lambda: torch.vmap(functional.cross_entropy)(LOGITS.view(2, 2, 8), TARGETS.view(2, 2)),
        lambda: functional.cross_entropy(LOGITS.to("meta"), TARGETS.to("meta")),
        lambda: torch.jit.trace(functional.cross_entropy, (LOGITS, TARGETS), check_trace=False),
        lambda: functional.cross_entropy(LOGITS[:0], TARGETS[:0]),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_of_what_holds_no_ignored_targets_nothing_is_noted(loss):
    assert seen(loss) == []


def test_losses_and_random_numbers_stay_the_same_and_errors_reach_the_script():
    plain = functional.cross_entropy(LOGITS, TARGETS)
    state = torch.get_rng_state()
    results = []
    seen(lambda: results.append(functional.cross_entropy(LOGITS, TARGETS)))
    assert torch.equal(results[0], plain)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="batch_size"):
        seen(lambda: functional.cross_entropy(LOGITS, TARGETS[:3]))


def test_targets_are_counted_as_they_were_and_without_an_operator():
    targets = TARGETS.clone()

    def work():
        functional.cross_entropy(LOGITS, targets)
        targets.fill_(1)

    assert seen(work) == [(8, (4,), (2,))]
    with torch.profiler.profile() as profiler:
        functional.cross_entropy(LOGITS, TARGETS)
    plain = [event.name for event in profiler.events()]
    with torch.profiler.profile() as profiler:
        seen(lambda: functional.cross_entropy(LOGITS, TARGETS))
    assert [event.name for event in profiler.events()] == plain


def test_the_line_of_the_script_is_noted():
    watch = IgnoredTargets()
    watch.start()
    nn.CrossEntropyLoss()(LOGITS, TARGETS)
    line = inspect.currentframe().f_lineno - 1
    watch.stop()
    (record,) = watch.records()
    assert (record.file, record.line) == (__file__, line)


def test_no_more_calls_and_numbers_are_looked_at_than_allowed(monkeypatch):
    monkeypatch.setattr(ignored_targets, "MAX_CALLS", 2)
    assert seen(lambda: [functional.cross_entropy(LOGITS, TARGETS) for _ in range(3)]) == [(8, (4, 4), (2, 2))]
    monkeypatch.setattr(ignored_targets, "MAX_NUMBERS", 7)
    assert seen(lambda: [functional.cross_entropy(LOGITS, TARGETS) for _ in range(3)]) == [(8, (4,), (2,))]


def test_targets_on_a_device_are_counted_later_unless_they_were_written_to(monkeypatch):
    class OnDevice:
        """Stands for a tensor on a device."""

        device, shape, _version = torch.device("cuda"), TARGETS.shape, 0

        def detach(self):
            return TARGETS

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    tensor = OnDevice()
    count = ignored_targets._counted(tensor, -100)
    assert count() == 2
    tensor._version = 1
    assert count() < 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert ignored_targets._counted(tensor, -100) is None


def test_nothing_is_kept_and_the_functions_are_put_back():
    original = torch._C._nn.cross_entropy_loss
    targets = TARGETS.clone()
    watch = IgnoredTargets()
    watch.start()
    assert torch._C._nn.cross_entropy_loss is not original
    functional.cross_entropy(LOGITS, targets)
    watch.stop()
    assert torch._C._nn.cross_entropy_loss is original
    gone = weakref.ref(targets)
    assert watch.records() != ()
    del targets
    gc.collect()
    assert gone() is None
    assert watch.records() == ()


def test_a_capture_has_them_and_an_examination_finds_them(capturing):
    run = capturing("steps.py", "masked", steps=6)
    (record,) = run.info.targets
    assert (record.classes, set(record.targets), set(record.ignored)) == (4000, {128}, {96})
    assert Path(record.file).name == "steps.py"
    answer = analyze_paths([run.folder])
    assert "work-on-nothing" in [finding.rule for finding in answer.findings]  # its data flow shows it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_can_be_scripted_meanwhile():
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch._C._nn.cross_entropy_loss(logits, targets, None, 1, -100, 0.0)

    scripted = []
    seen(lambda: scripted.append(torch.jit.script(loss)))
    assert torch.equal(scripted[0](LOGITS, TARGETS), functional.cross_entropy(LOGITS, TARGETS))

"""``diagnose.prove``: step functions of this process, and what must be as before afterwards."""

import itertools
import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import diagnose
from diagnose.changes import fewer_bits, schedule_gc
from diagnose.changes.common.change import Patch
from diagnose.errors import CaptureError, UsageError
from diagnose.model.diagnosis import Diagnosis, Prescription, Source
from diagnose.text.progress import Progress
from diagnose.trials.in_process import InProcess, prove_runs
from diagnose.trials.in_sequence import Schedule

NOTHING_KNOWN = Diagnosis(
    "no-gpu", "Not recorded.", None, 10e6, (10_000_000,) * 5, None, None, {}, (), (), (), Source("by hand")
)


SHORT = Schedule(timed_s=0.02, min_warm_up=4, max_blocks=1)  # a few steps instead of two seconds of them


def make(draw=lambda: torch.randn(8, 4), returns=lambda loss: loss):
    """Return a factory of a small training step."""

    def factory():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step():
            loss = model(draw()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return returns(loss)

        return step

    return factory


def proven(factory, *ids, diagnosis=NOTHING_KNOWN, budget_s=600.0, quiet=True):
    return prove_runs(InProcess(factory, schedule=SHORT), ids, budget_s, diagnosis, Progress(quiet=quiet))


class SlowSamples(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index))


def loading(sample_s, step_s):
    """Return a factory of a step that waits for its samples, and then for so many seconds more."""

    def factory():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        loader = DataLoader(SlowSamples(sample_s), batch_size=4)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))

        def step():
            time.sleep(step_s)
            model(next(batches)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return factory


@pytest.fixture
def timed_as(monkeypatch):
    """Let every run take place, but take these step times, by the changes that it ran with, for the measured ones."""
    measure = InProcess.time

    def install(step_ns):
        def time(self, ids, *, timeout_s):
            run = measure(self, ids, timeout_s=timeout_s)
            return replace(run, step_ns=(step_ns(ids),) * len(run.step_ns)) if run.step_ns else run

        monkeypatch.setattr(InProcess, "time", time)

    return install


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_it_diagnoses_applies_measures_and_diagnoses_again(capsys, timed_as):
    timed_as(lambda ids: 5e6 if "load-in-workers" in ids else 13e6)
    ids = "load-in-workers", "sham"
    diagnosis = proven(loading(0.002, 0.01), *ids, diagnosis=None, budget_s=3600.0, quiet=False)
    workers, sham = diagnosis.trials
    assert "data-stall" in {finding.rule for finding in diagnosis.findings}
    assert workers.failure == ""
    assert (workers.speed_up, workers.interval[0] > 1.0) == (pytest.approx(2.6), True)
    assert workers.numerics == "identical"
    assert workers.predicted_ms is not None
    assert (sham.numerics, sham.note) == ("identical", "Applied: nothing, on purpose.")
    assert sham.speed_up == 1.0
    assert diagnosis.after is not None
    assert "running it with load-in-workers" in capsys.readouterr().err


@pytest.mark.timing
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_loading_in_workers_is_a_gain():
    diagnosis = proven(loading(0.002, 0.005), "load-in-workers", "sham", diagnosis=None, budget_s=60.0)
    workers = diagnosis.trials[0]
    assert diagnosis.dominant == "data-stall"
    assert workers.interval[0] > 1.0
    assert workers.predicted_ms < 12
    assert diagnosis.after.step_ns < diagnosis.step_ns


def test_losses_are_those_returned_or_else_those_of_backward():
    returned = InProcess(make(returns=lambda loss: 7 * loss.item()), timed=5).time((), timeout_s=60)
    heard = InProcess(make(returns=lambda loss: {"loss": loss}), timed=5).time((), timeout_s=60)
    assert returned.losses[:15] == pytest.approx([7 * loss for loss in heard.losses[:15]])


@pytest.mark.full
def test_a_step_that_goes_on_where_it_was_is_judged_by_its_spread_and_that_is_said():
    step = make()()
    diagnosis = proven(lambda: step, "sham")
    assert "differs from itself" in diagnosis.trials[0].note
    assert [note for note in diagnosis.trust if "does not create everything again" in note.text]


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("factory", "said", "cause"),
    [
        (lambda: fail(ValueError("bad data.\nmore")), "The factory raised ValueError: bad data.", ValueError),
        (lambda: 7, "The factory returned int, which cannot be called", None),
        (lambda: lambda: fail(KeyError("x")), "The step function raised KeyError: 'x'.", KeyError),
        (lambda: iter(range(4)).__next__, "The step function raised StopIteration", None),
        (lambda: fail(RuntimeError()), "The factory raised RuntimeError.", RuntimeError),
    ],
)
@pytest.mark.parametrize("options", [{"diagnosis": NOTHING_KNOWN}, {}])
def test_what_cannot_be_proven_is_one_sentence_with_the_traceback_behind_it(factory, said, cause, options):
    with pytest.raises(CaptureError) as caught:
        diagnose.prove(factory, apply="sham", quiet=True, **options)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert cause is None or isinstance(caught.value.__cause__, cause)


def test_data_that_ends_after_enough_steps_will_do(monkeypatch):
    monkeypatch.setattr("diagnose.trials.measuring.converged_since", lambda times: 0)

    def factory():
        steps = iter(range(20))

        def step():
            next(steps)

        return step

    run = InProcess(factory, timed=15).time((), timeout_s=60)
    assert run.failure == ""
    assert len(run.step_ns) == 10


@pytest.mark.full
def test_a_change_that_crashes_is_a_result_and_the_others_go_on(monkeypatch):
    broken = Patch(lambda _log, _options: fail(OSError("no")))
    monkeypatch.setattr(schedule_gc, "CHANGE", replace(schedule_gc.CHANGE, patch=broken))
    raising = Patch(_raising_backward)
    changed = tuple(replace(each, patch=raising) if each.id == "autocast" else each for each in fewer_bits.CHANGES)
    monkeypatch.setattr(fewer_bits, "CHANGES", changed)
    before = torch.autograd.backward
    trials = proven(make(), "schedule-gc", "autocast", "sham").trials
    assert [trial.failure for trial in trials] == [
        "schedule-gc could not be applied: OSError: no.",
        "The step function raised ArithmeticError: overflow.",
        "",
    ]
    assert torch.autograd.backward is before


def _raising_backward(_log, _options):
    original = torch.autograd.backward
    torch.autograd.backward = lambda *_args, **_kwargs: fail(ArithmeticError("overflow"))
    return lambda: setattr(torch.autograd, "backward", original)


def test_a_step_that_takes_too_long_is_given_up_between_steps(monkeypatch):
    now_s = itertools.count()  # a step a second
    monkeypatch.setattr("diagnose.trials.in_process.time.monotonic", lambda: next(now_s))
    run = InProcess(lambda: lambda: None).time(("sham",), timeout_s=4)
    assert "in the time that was left" in run.failure


def draws():
    return torch.rand(1).item(), np.random.rand(), random.random()


def seed():
    torch.manual_seed(5)
    np.random.seed(5)  # the generator that scripts share
    random.seed(5)


def test_nothing_of_it_is_left_behind():
    loader, hooks = dict(vars(DataLoader)), len(torch.nn.modules.module._global_forward_pre_hooks)
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    seed()
    expected = draws()
    seed()
    proven(lambda: lambda: model(torch.randn(2, 3, 8, 8)).sum().backward(), "channels-last")
    assert draws() == expected
    assert dict(vars(DataLoader)) == loader
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    assert model[0].weight.is_contiguous()


def test_an_interrupt_goes_through_and_undoes_the_patches():
    before = DataLoader.__init__

    def step():
        assert DataLoader.__init__ is not before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InProcess(lambda: step).time(("load-in-workers",), timeout_s=9)
    assert DataLoader.__init__ is before


def test_what_makes_no_sense_is_refused_before_anything_runs(monkeypatch):
    def never():
        raise AssertionError

    with pytest.raises(UsageError, match=r"expandable-segments sets environment variables.*diagnose prove"):
        proven(never, "expandable-segments")
    with pytest.raises(UsageError, match="Invalid change faster"):
        diagnose.prove(never, apply="sham, faster")
    with pytest.raises(UsageError, match=r"Invalid budget .soon.: use 90s, 10m or 1h"):
        diagnose.prove(never, apply="sham", diagnosis=NOTHING_KNOWN, budget="soon")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="single process"):
        proven(never)


def test_a_change_for_gpus_is_not_tried_without_one():
    trial = proven(make(), "prefetch-to-device").trials[0]
    assert trial.failure == "It needs a GPU, and these steps used none."


def test_without_a_prescription_that_can_be_applied_nothing_runs():
    prescription = Prescription("host-sync", "defer-sync", "Read later", "", "", (0, 1), None, "same numbers")
    known = replace(NOTHING_KNOWN, prescriptions=(prescription,))
    diagnosis = diagnose.prove(lambda: fail(AssertionError()), diagnosis=known, quiet=True)
    assert diagnosis.trials == ()
    assert [note.text.partition(":")[0] for note in diagnosis.trust] == [
        "No prescription of this diagnosis can be applied from outside, so nothing was run.",
        "defer-sync was not run",
        "compile-model was not run",
    ]

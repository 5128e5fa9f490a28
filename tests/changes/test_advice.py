"""Advice that is not given where it would not fit what was found."""

from dataclasses import replace

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding, Where
from diagnose.tables.program import Program

STALL = Finding("python-stall", "", 5e6)


@pytest.mark.parametrize(("waiting", "process"), [(0.1, True), (0.9, False), (None, True)])
def test_python_that_computes_goes_to_no_thread(waiting, process):
    finding = replace(
        STALL, where=(Where("train.py", 7, code="rows = parse(lines)"),), facts={"waiting_share": waiting}
    )
    (p,) = prescribe(finding, 10e6)
    assert ("for another process" in p.needs, "ThreadPoolExecutor" in p.after) == (process, not process)


@pytest.mark.parametrize(("sent", "prescribed"), [(84, False), (999_999, False), (1_000_000, True), (None, True)])
def test_tiny_gradients_are_not_sent_in_16_bits(sent, prescribed):
    finding = Finding("exposed-communication", "", 5e6, facts={"gradient_bytes": sent, "is_exchange": False})
    ids = [p.id for p in prescribe(finding, 10e6, Program(trains=True, is_ddp=True))]
    assert ("compress-gradients" in ids) is prescribed


def test_an_optimizer_is_not_moved_to_the_device():
    finding = Finding("host-compute", "", 5e6, facts={"operator": "Optimizer.zero_grad#SGD.zero_grad"})
    assert prescribe(finding, 10e6) == []


def test_how_many_workers_a_recorded_step_needs_does_not_depend_on_who_reads_it(monkeypatch):
    # 40 ms of loading beside 1 ms of the step: with the cores of the machine that reads it, 2, half would be left.
    facts = {"single_process": True, "batch_ns": 40e6, "batches_per_step": 1, "has_device": True}
    saves = []
    for cpus in (2, 64):
        monkeypatch.setattr("os.cpu_count", lambda cpus=cpus: cpus)
        (p,) = prescribe(Finding("data-stall", "", 40e6, facts=facts), 41e6, Program(trains=True))
        saves.append((p.title, p.saves_ns))
    assert saves[0] == saves[1] == ("Load batches in 16 worker processes, ahead of the step", (0.85 * 40e6, 40e6))

"""Loaders that begin anew for each batch: what that takes, and what is advised."""

import pytest

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def restarting(recording, draws=6, took=600, draw="aten::randperm"):
    r = recording(devices=())
    for step in range(6):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.annotation(SINGLE, at, at + took)
        if step < draws:
            r.op(draw, at + 10, at + 100)
            r.op("aten::empty", at + 20, at + 30)
            r.op("aten::cumsum", at + 40, at + 50)  # inside of the draw
            r.op("aten::resolve_neg", at + 101, at + 102)
        r.op("aten::slice", at + took - 150, at + took - 100)
        r.op("aten::mm", at + took, at + 1000)
    return r


@pytest.mark.parametrize("draw", ["aten::randperm", "aten::multinomial"])
def test_a_loader_that_begins_anew_for_each_batch_is_no_work_for_workers(recording, draw):
    r = restarting(recording, draw=draw)
    finding = r.find("data-stall")
    assert finding.title == "The step waits for the DataLoader, which restarts for each batch"
    assert finding.facts["restart_share"] == pytest.approx(450 / 600)
    assert "Each call draws the order of all samples again, which takes 75 % of it." in finding.evidence[-1]
    (p,) = r.prescribe("data-stall")
    assert (p.id, p.saves_ns) == ("keep-iterator", (pytest.approx(360_000), pytest.approx(450_000)))


@pytest.mark.parametrize("draws", [0, 1, 5])
def test_an_order_that_is_drawn_with_each_epoch_is_none_of_it(recording, draws):
    r = restarting(recording, draws)
    assert r.find("data-stall").facts["restart_share"] is None
    assert "keep-iterator" not in [p.id for p in r.prescribe("data-stall")]

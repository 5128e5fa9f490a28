"""saved-view: torch.save writes the whole storage of a view. Every tenth of a run of 10 ms steps takes 40."""

import pytest

from diagnose.model.capture import CaptureInfo
from diagnose.model.records import SaveRecord

MS = 1_000_000


@pytest.fixture
def saving(recording, run_steps):
    def make(**sizes):
        r = recording()
        r.step(1, 0, 10_000)
        r.op("aten::mm", 0, 10_000)
        r.run = run_steps([40.0 if i % 10 == 9 else 10.0 for i in range(40)])
        one = SaveRecord(file="train.py", line=7, function="snapshot", num=4, took_ns=100 * MS, **sizes)
        r.info = CaptureInfo(saves=(one,))
        r.lines["train.py", 7] = "torch.save(state, path)"
        return r

    return make


VIEW = {"spare_ns": 80 * MS, "num_bytes": 50_000_000, "spare_bytes": 40_000_000}
NAMED = {"name": "given", "view_bytes": 20_000, "storage_bytes": 40_020_000}


def test_a_view_is_named_with_its_key_and_the_line_that_saves_it(saving):
    r = saving(**VIEW, **NAMED)
    finding = r.find("saved-view")
    assert finding.lost_ns == pytest.approx(2 * MS)
    assert finding.share == pytest.approx(2 / 13, rel=0.05)
    assert finding.evidence == (
        "given shows 20.0 kB of a storage of 40.0 MB, and all of that is written.",
        "80 % of the 50.0 MB in a file do not belong to a saved tensor. 4 files took 100 ms.",
    )
    assert (finding.where[0].line, finding.where[0].code) == (7, "torch.save(state, path)")
    assert [each.id for each in r.prescribe("saved-view")] == ["save-copy"]


def test_files_that_hold_what_is_saved_are_not_named(saving):
    assert saving(num_bytes=50_000_000).find("saved-view") is None


def test_without_a_tensor_nothing_is_named(saving):
    assert saving().find("saved-view") is None

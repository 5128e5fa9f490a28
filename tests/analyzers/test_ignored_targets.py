"""ignored-targets: logits of targets that the loss ignores. Times in µs."""

import json

import pytest

from diagnose.analyzers import ignored_targets
from diagnose.changes.common.prescribe import prescribe
from diagnose.pipeline.find import build_tables
from diagnose.pipeline.trust import trust_notes
from diagnose.tables.program import program_of

EPOCH_US = 1_700_000_000_000_000
LOGITS, FLAT, WEIGHTS = [4, 25, 50], [100, 50], [50, 8]


def shapes(*each):
    return json.dumps(each)


def tables(
    recording, *, ignored=(80, 80), targets=(100, 100), devices=(), weights=WEIGHTS, width=8, before=(), after=(),
    loss="aten::cross_entropy_loss",
):  # fmt: skip
    """Return two steps of 1000 µs: a projection of 100 µs, a loss of 50, and backward functions of 50 and 200."""
    r = recording(devices=devices) if devices == () else recording()
    begins = []
    for step in range(2):
        at, number = 1000 * step, 10 * step
        r.step(step + 1, at, at + 1000)
        r.op("aten::embedding", at, at + 50, sequence=number, shapes=shapes([50, 8], [4, 25]))
        r.op("aten::linear", at + 100, at + 200, sequence=number + 1, shapes=shapes([4, 25, width], weights, [50]))
        for name, given in before:
            r.op(name, at + 201, at + 205, sequence=number + 2, shapes=shapes(given))
        r.op("aten::view", at + 206, at + 210, sequence=number + 2, shapes=shapes(LOGITS, []))
        r.op(loss, at + 250, at + 300, sequence=number + 3, shapes=shapes(FLAT, [100]))
        for name, given in after:
            r.op(name, at + 310, at + 320, sequence=number + 4, shapes=shapes(given))
        r.op("aten::ones_like", at + 330, at + 340, sequence=number + 4, shapes=shapes([]))
        r.op("autograd::engine::evaluate_function: NllLossBackward0", at + 400, at + 450)
        r.op("NllLossBackward0", at + 400, at + 450, sequence=number + 3)
        r.op("autograd::engine::evaluate_function: AddmmBackward0", at + 500, at + 700)
        r.op("AddmmBackward0", at + 500, at + 700, sequence=number + 1)
        r.op("aten::_fused_adam_", at + 800, at + 900, shapes=shapes([weights, [50]], [weights, [50]]))
        if devices != ():
            r.kernel("embed", at + 10, at + 80, launched=(at + 11, at + 12))
            r.kernel("gemm", at + 110, at + 210, launched=(at + 101, at + 105))
            r.kernel("loss", at + 260, at + 300, launched=(at + 251, at + 255))
            r.kernel("gemm_backward", at + 510, at + 810, launched=(at + 501, at + 505))
        begins.append(1000 * (EPOCH_US + at + 249))
    ends = [begin + 52_000 for begin in begins]
    record = {"file": "train.py", "line": 7, "classes": 50, "began_ns": begins, "ended_ns": ends}
    r.with_info(targets=[record | {"targets": targets, "ignored": ignored}])
    capture = r.capture(attribution=r)
    return build_tables(capture, capture.trace)


def test_the_ignored_share_of_projection_and_loss_and_their_backward_is_lost(recording):
    t = tables(recording)
    (finding,) = ignored_targets.find(t)
    assert finding.lost_ns == pytest.approx(0.8 * (100 + 4 + 50 + 50 + 200) * 1000)
    assert finding.evidence[-1] == (
        "The cross entropy is given 100 targets, of which 80 are ignored: 80 % of the logits, 50 for each target, have "
        "no part in the loss."
    )
    assert (finding.where[0].file, finding.where[0].line) == ("train.py", 7)
    (change,) = prescribe(finding, t.steps.step_ns, program_of(t))
    assert (change.id, change.title) == (
        "gather-labelled-rows",
        "Compute the logits of labelled positions alone (80 % of the targets are ignored)",
    )
    assert change.saves_ns == (pytest.approx(0.6 * finding.lost_ns), finding.lost_ns)


def test_beside_a_device_it_is_the_share_of_the_kernels(recording):
    (finding,) = ignored_targets.find(tables(recording, devices="one"))
    assert finding.lost_ns == pytest.approx(0.8 * (100 + 40 + 300) * 1000)


def test_a_loss_of_logarithms_takes_them_with_it(recording):
    t = tables(recording, loss="aten::nll_loss_nd", before=[("aten::log_softmax", LOGITS)])
    (finding,) = ignored_targets.find(t)
    assert finding.lost_ns == pytest.approx(0.8 * (100 + 4 + 4 + 50 + 50 + 200) * 1000)


@pytest.mark.parametrize(
    "change",
    [
        {"ignored": (49, 49)},
        {"ignored": (80,)},  # not parallel
        {"ignored": (), "targets": ()},
        {"ignored": (101, 101)},
        {"targets": (400, 400), "ignored": (390, 390)},  # more than the projection has rows
        {"weights": [49, 8]},  # another product
    ],
)
def test_where_most_targets_count_or_no_projection_fits_nothing_is_found(recording, change):
    assert ignored_targets.find(tables(recording, **change)) == []


def test_weights_with_as_many_numbers_as_the_logits_are_no_reader(recording):
    assert len(ignored_targets.find(tables(recording, weights=[50, 120], width=120))) == 1


def test_a_small_part_of_the_step_is_no_finding(recording, monkeypatch):
    monkeypatch.setattr(ignored_targets, "MIN_STEP_SHARE", 0.33)
    assert ignored_targets.find(tables(recording)) == []
    monkeypatch.setattr(ignored_targets, "MIN_STEP_SHARE", 0.32)
    assert len(ignored_targets.find(tables(recording))) == 1


@pytest.mark.parametrize(
    "reader",
    [
        {"after": [("aten::argmax", LOGITS)]},
        {"before": [("aten::softmax", LOGITS)]},
        {"before": [("aten::where", LOGITS)]},
        {"before": [("aten::log_softmax", LOGITS)]},
        {"after": [("aten::to", FLAT)]},
    ],
)
def test_logits_that_something_else_reads_are_named_and_not_found(recording, reader):
    t = tables(recording, **reader)
    assert ignored_targets.find(t) == []
    assert "ignored-targets" not in t.causes.totals()
    (((name, _),),) = reader.values()
    (note,) = [note.text for note in trust_notes(t) if "ignored" in note.text]
    assert note == (
        f"At train.py:7 80 % of the targets are ignored, but {name} is given the logits of all of them too: where the "
        "labelled ones are enough for that, gather their rows before the projection."
    )


@pytest.mark.parametrize("harmless", [("aten::detach", LOGITS), ("aten::argmax", [4, 25, 8]), ("aten::clone", WEIGHTS)])
def test_views_and_tensors_of_another_size_are_no_reader(recording, harmless):
    t = tables(recording, after=[harmless])
    assert len(ignored_targets.find(t)) == 1
    assert not [note for note in trust_notes(t) if "ignored" in note.text]

"""padded-batch: calls of a module whose inputs end in padding. Times in µs."""

import pytest

from diagnose.analyzers import padded_batch
from diagnose.changes.common.prescribe import prescribe
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import program_of

EPOCH_US = 1_700_000_000_000_000


BY = ["train.py", 28, 36, "collate"]


def padded(recording, *, used=(30, 50), positions=(100, 100), devices=(), lengths=(), **known):
    """Return two steps of 1000 µs; in each one call of 200 µs, and a function of its backward pass of 300."""
    r = recording(devices=devices) if devices == () else recording()
    begins = []
    for step in range(2):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.op("aten::mm", at + 100, at + 300, sequence=step)
        r.op("aten::sum", at + 400, at + 450, sequence=step + 1)
        r.op("autograd::engine::evaluate_function: MmBackward0", at + 500, at + 800)
        r.op("MmBackward0", at + 500, at + 800, sequence=step)
        if devices != ():
            r.kernel("gemm", at + 110, at + 900, launched=(at + 101, at + 105))
        begins.append(1000 * (EPOCH_US + at + 50))
    ends = [begin + 300_000 for begin in begins]
    r.with_info(
        padding=[
            {
                "module": "Bert",
                "began_ns": begins,
                "ended_ns": ends,
                "positions": positions,
                "used": used,
                "lengths": lengths,
            }
        ],
        **known,
    )
    capture = r.capture(attribution=r)
    return build_tables(capture, capture.trace)


def test_the_paddings_share_of_forward_and_backward_is_lost(recording):
    t = padded(recording)
    (finding,) = padded_batch.find(t)
    assert finding.lost_ns == 300_000  # 60 % of 200 and 300 µs
    assert finding.evidence[-1] == (
        "Bert is given batches of 100 positions, of which the longest row uses 40: 60 % are padding in every row."
    )
    (change,) = prescribe(finding, t.steps.step_ns, program_of(t))
    assert (change.id, change.title) == (
        "trim-padding",
        "Pad each batch to its own longest row (60 % of the positions are padding)",
    )


def test_beside_a_device_it_is_the_share_of_the_kernels(recording):
    (finding,) = padded_batch.find(padded(recording, devices="one"))
    assert finding.lost_ns == pytest.approx(0.6 * 790_000)


@pytest.mark.parametrize(
    "change",
    [
        {"used": (40, 40)},  # columns that no row of any batch uses are features
        {"used": (93, 95)},
        {"used": (30,)},  # not parallel
    ],
)
def test_what_is_no_padding_or_too_little(recording, change):
    assert padded_batch.find(padded(recording, **change)) == []


@pytest.mark.parametrize("devices", [(), "one"])
def test_what_makes_the_batches_is_named_first(recording, devices):
    (finding,) = padded_batch.find(padded(recording, devices=devices, loader={"batches_by": BY}))
    place = finding.where[0]
    assert (place.file, place.line, place.last_line, place.function) == ("train.py", 28, 36, "collate")


def test_rows_of_different_lengths_show_it_where_all_batches_are_as_long(recording):
    (finding,) = padded_batch.find(padded(recording, used=(40, 40), lengths=(1, 3)))
    assert finding.lost_ns == 300_000
    assert padded_batch.find(padded(recording, used=(40, 40), lengths=(1, 1))) == []

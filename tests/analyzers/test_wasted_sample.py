"""wasted-sample: what samples computed that were loaded again, as a part of the waits for batches."""

import pytest

from diagnose.model.capture import CaptureInfo
from diagnose.model.records import (
    ExpressionRecord,
    HostCallRecord,
    ListedRecord,
    LoadedRecord,
    LoaderRecord,
    OperandRecord,
)

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
WHOLE = ExpressionRecord(file="data.py", line=7, text="table()", what="float32 (9,)", ns=500, own_ns=500)


def info(*expressions, comes_again=True, size=10):
    loaded = LoadedRecord(samples=1, total_ns=1000, dataset_size=size, narrow=True, expressions=expressions)
    return CaptureInfo(loaded=loaded, loader=LoaderRecord(comes_again=comes_again))


def row(**fields):
    return ExpressionRecord(**{name: getattr(WHOLE, name) for name in WHOLE.__struct_fields__} | fields)


@pytest.fixture
def booked(late):
    def book(known, name=SINGLE):
        late.annotation(name, 300, 690)
        late.info = known
        return late.booked()

    return book


@pytest.mark.parametrize(
    ("one", "comes_again", "claimed"),
    [
        (row(is_constant=True), False, 195_000),  # half of the 390 µs
        (row(is_constant=True, is_written=True), False, 0),
        (row(is_repeated=True), True, 195_000),
        (row(is_repeated=True), False, 0),  # no sample comes twice
        (row(is_repeated=True, what=""), True, 0),  # how much it is to keep is not known
        (row(is_repeated=True, num_bytes=1 << 30), True, 0),  # of ten samples more than is kept
        (row(is_wide=True), False, 97_500),  # half of its time
        (row(used=0.2), False, 156_000),  # four fifths of its time
        (row(used=0.2, is_wide=True), False, 156_000),  # once
        (row(), True, 0),
    ],
)
def test_each_question_is_claimed_by_its_share_of_the_wait(booked, one, comes_again, claimed):
    found = booked(info(one, comes_again=comes_again))
    assert found.get("wasted-sample", 0) == claimed
    assert found["data-stall"] == 390_000 - claimed


def test_what_is_inside_of_another_counts_once(booked):
    inner = row(line=9, inside=(0,), ns=400, is_constant=True, is_wide=True)
    assert booked(info(row(is_constant=True), inner))["wasted-sample"] == 195_000


def test_what_a_sample_has_again_counts_without_what_is_saved_inside_of_it(booked):
    inner = row(line=9, inside=(0,), ns=400, is_constant=True)
    assert booked(info(row(is_repeated=True), inner))["wasted-sample"] == 195_000  # 400 and 100 of 1000


def test_workers_shorten_the_wait_by_what_a_batch_comes_earlier(booked):
    known = info(row(is_constant=True, ns=100))
    assert booked(known, WORKERS)["wasted-sample"] == 100_000  # a tenth of the step of 1 ms, of a wait of 390 µs


@pytest.mark.parametrize(("ready", "claimed"), [(0.79, 390_000), (0.8, 0)])
def test_workers_that_have_batches_ready_are_not_waited_for(booked, ready, claimed):
    known = info(row(is_constant=True))
    loader = LoaderRecord(num_workers=4, batches_ready=ready)
    assert booked(CaptureInfo(loaded=known.loaded, loader=loader), WORKERS).get("wasted-sample", 0) == claimed


def test_what_the_sampler_takes_is_no_part_of_a_sample(booked, late):
    late.frame("torch/utils/data/dataloader.py(736): __next__", 301, 689)
    late.frame("torch/utils/data/dataloader.py(730): _next_index", 302, 496)  # half of the time
    late.frame("train.py(57): __iter__", 303, 495)
    assert booked(info(row(is_constant=True)))["wasted-sample"] == 97_500
    assert late.find("wasted-sample").evidence[-1].endswith("and takes 25 % of loading.")


def test_the_finding_names_the_expression(booked, late):
    booked(info(row(is_constant=True)))
    finding = late.find("wasted-sample")
    assert finding.title == "Loading computes what is the same for every sample"
    assert (finding.where[0].file, finding.where[0].line) == ("data.py", 7)
    assert finding.evidence[-1] == (
        "The result of table() (float32 (9,)) in line 7 of data.py is the same in every sample, and takes 50 % of "
        "loading."
    )


def test_float64_in_the_batch_is_wanted(booked):
    known = info(row(is_wide=True))
    known = CaptureInfo(loaded=LoadedRecord(samples=1, total_ns=1000, expressions=known.loaded.expressions))
    assert "wasted-sample" not in booked(known)


def test_without_samples_nothing_is_claimed(booked):
    assert booked(CaptureInfo())["data-stall"] == 390_000


def test_what_is_cut_off_is_named_with_all_its_lines(booked, late):
    booked(info(row(used=0.25, ns=100, own_ns=100, line=5), row(used=0.25)))
    finding = late.find("wasted-sample")
    assert finding.title == "Loading computes more than the samples use"
    assert [where.line for where in finding.where] == [7, 5]
    assert finding.evidence[-1] == (
        "Lines 5 and 7 of data.py compute table() (float32 (9,)) and cut it: a sample uses 25 % of the elements. The "
        "part that it uses can be computed without the rest, which takes 45 % of loading."
    )


def test_the_change_cuts_first_what_is_cut_later(booked, late):
    def shown(one):
        booked(info(one))
        found = [change for change in late.diagnosis().prescriptions if change.rule == "wasted-sample"]
        return {change.id: change.title for change in found}

    of_part = shown(row(used=0.1, cut=("data.py", 9, "image[y:y + size]")))
    assert of_part["cut-first"] == (
        "Cut first, then compute: image[y:y + size] (data.py:9) before what line 7 computes, not after it"
    )
    assert "cheaper-sample" not in of_part
    booked(info(row(used=0.1, cut=("data.py", 9, "image[a:b]")), row(used=0.1, line=3)))
    titles = [change.title for change in late.diagnosis().prescriptions if change.id == "cut-first"]
    assert titles[0].endswith("before what lines 3 and 7 compute, not after it")
    assert "cut-first" not in shown(row(is_constant=True))


def test_lists_in_samples_cost_what_arrays_in_their_place_save(late):
    late.annotation(SINGLE, 300, 690)
    listed = ListedRecord(file="data.py", line=9, function="__getitem__", text="flow", numbers=1500, share=0.5)
    late.info = CaptureInfo(loaded=LoadedRecord(samples=8, total_ns=1000, listed=listed))
    assert late.booked()["wasted-sample"] == 195_000
    finding = late.find("wasted-sample")
    assert (finding.where[0].line, finding.title) == (9, "Lists of numbers in the samples are collated one by one")
    assert "lists of 1,500 numbers, as flow" in finding.evidence[-1]
    titles = [each.title for each in late.prescribe("wasted-sample")]
    assert titles[0] == "Return arrays instead of lists from the dataset (data.py:9)"


def test_a_function_that_is_called_for_each_row_is_a_part_of_the_call(late):
    late.annotation(SINGLE, 300, 690)
    text = "np.apply_along_axis(rate, 1, x)"
    operand = OperandRecord(text="x", kind="numpy.ndarray", size=900, shape=(30, 30))
    call = HostCallRecord(file="data.py", line=7, text=text, name="numpy.apply_along_axis", num=8, ns=900, looks=4,
                          operands=(operand,))  # fmt: skip
    expressions = (row(text=text, ns=800, own_ns=100),)
    late.info = CaptureInfo(loaded=LoadedRecord(samples=8, total_ns=1000, expressions=expressions, calls=(call,)))
    assert late.booked()["wasted-sample"] == pytest.approx(0.7 * 0.8 * 390_000, abs=2)
    finding = late.find("wasted-sample")
    assert finding.title == "np.apply_along_axis() calls a function of Python's for each row"

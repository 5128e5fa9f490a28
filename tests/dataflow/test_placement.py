"""Placement: copies to the device of what need not come from the host."""

from diagnose.dataflow.placement import host_round_trips, read_by_element
from tests.dataflow.table import Table, lines

GPU = {"device": "cuda:0"}


def test_what_is_copied_back_and_forth_is_a_round_trip():
    t = Table()
    here = t.op("_to_copy", t.value(64, **GPU), line=2, ns=30)
    t.op("_to_copy", t.op("sort", here, line=3, ns=50), line=4, ns=20, facts=GPU)
    (found,) = host_round_trips(t.graph())
    assert (found.kind, found.work.share, lines(found.work), found.num_bytes) == ("round-trip", 1.0, [2, 3, 4], 256)
    assert (found.value_line.line, found.use_line.line) == (2, 4)


def test_what_the_host_makes_from_nothing_can_be_made_on_the_device():
    t = Table()
    t.op("_to_copy", t.op("arange", shape=(64,), line=3), line=4, facts=GPU)
    (found,) = host_round_trips(t.graph())
    assert (found.kind, lines(found.work)) == ("made-on-host", [3, 4])


def test_the_same_content_in_each_step_can_stay_on_the_device():
    t = Table()
    for t.step in range(2):
        t.op("_to_copy", t.value(64, content="positions"), line=4, facts=GPU)
    (found,) = host_round_trips(t.graph())
    assert found.kind == "constant"


def test_ones_that_a_batch_has_in_both_steps_may_be_luck():
    t = Table()
    for t.step in range(2):
        t.op("_to_copy", t.value(64, content="ones", kind="constant"), line=4, facts=GPU)
    assert host_round_trips(t.graph()) == ()


def test_what_python_made_has_to_be_copied():
    t = Table()
    for t.step in range(2):
        t.op("_to_copy", t.op("lift_fresh", shape=(8,), line=3), line=4, facts=GPU)
    assert host_round_trips(t.graph()) == ()


def test_a_batch_has_to_be_copied():
    t = Table()
    for t.step in range(2):
        t.op("_to_copy", t.op("div", t.value(64), line=3), line=4, facts=GPU)
    assert host_round_trips(t.graph()) == ()


def test_elements_of_one_value_that_python_reads_in_a_loop_are_read_one_by_one():
    def found(num: int, values: int):
        t = Table()
        sources = [t.op("sum", t.value(64), line=3) for _ in range(values)]
        for turn in range(num):
            t.op("slice", t.value(4), line=5, ns=10)
            t.read_on_host(sources[turn % values], line=5)
        return [(one.line.line, one.value_line.line, one.num_reads) for one in read_by_element(t.graph())]

    assert found(8, 1) == [(5, 3, 8)]
    assert found(7, 1) == []
    assert found(8, 2) == []  # four numbers of each


def test_lines_of_one_function_that_read_in_turns_are_one_record():
    t = Table()
    labels, weights = (t.op("sum", t.value(64), line=line) for line in (3, 4))
    for _ in range(8):
        t.read_on_host(labels, line=6)
        t.op("_local_scalar_dense", weights, line=7, reads_host=True, writes=())
        t.op("exp", t.value(4), line=8)
    (found,) = read_by_element(t.graph())
    assert (lines(found.work), found.line.line, found.num_reads) == ([6, 7], 7, 16)


def test_a_mask_by_which_rows_are_chosen_is_no_element_that_python_reads():
    t = Table()
    rows = t.op("exp", t.value(64), line=3)
    for _ in range(8):
        t.op("index", rows, line=5, reads_host=True)
    assert read_by_element(t.graph()) == ()


def test_a_number_that_is_compared_first_is_read_from_its_tensor_all_the_same():
    def found(shape):
        t = Table()
        levels = t.op("mean", t.value(64, 8), shape=shape, line=3)
        for _ in range(8):
            level = type(levels)(levels.value, (), (), 0, "float32")
            t.read_on_host(t.op("lt", level, shape=(), line=5), line=5)
        return [(one.line.line, one.value_line.line, one.num_reads) for one in read_by_element(t.graph())]

    assert found((8,)) == [(5, 3, 8)]
    assert found(()) == []  # one number, read again and again

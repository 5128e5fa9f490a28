"""Memory kept for the backward pass: which call keeps what, from when to when, and what to compute again."""

import numpy as np

from diagnose.dataflow.kept import KeptMemory, checkpoints, kept_by_line, step_memory
from tests.dataflow.table import Table

KB = 1024


def one_and_two(**last) -> Table:
    """Return exp and sin in module one, mul in module two, and their backward pass; each value has 1 KB."""
    t = Table()
    x = t.value(256)
    h = t.op("exp", x, line=2, module="net.one", facts={"is_kept": True, "dies": 5}, at=(9,))
    s = t.op("sin", h, line=3, module="net.one.act", facts={"is_kept": True, "dies": 3}, at=(9,))
    y = t.op("mul", s, line=4, module="net.two", facts={"dies": 2}, at=(10,))
    g = t.op("mul", y, s, line=4, phase="backward", forward=2, facts={"dies": 4}, **last)
    g = t.op("cos", g, h, line=3, phase="backward", forward=1, facts={"dies": 5})
    t.op("mul", g, h, line=2, phase="backward", forward=0)
    return t


def by_place(table: Table):
    """Return the changes of each module and line."""
    return {(one.module, one.line.line if one.line else 0): one.changes for one in step_memory(table.graph()).kept}


def test_the_memory_of_a_step_is_what_its_storages_hold():
    assert (step_memory(one_and_two().graph()).held / KB).tolist() == [2, 3, 4, 4, 4, 4]


def test_a_call_frees_what_its_own_backward_pass_alone_reads_from_the_last_read_before():
    assert by_place(one_and_two())["net.one", 9] == ((2, 4, -KB),)  # exp's result; sin's is read by the pass of mul


def test_a_module_is_named_with_the_line_that_calls_it_and_a_line_with_its_caller():
    t = one_and_two()
    for i in (0, 1):
        t.operators[i] = t.operators[i]._replace(module="")
    names = [(one.module, one.line and one.line.line, one.caller) for one in step_memory(t.graph()).kept]
    assert names == [("", 9, None)]
    assert [each[0] for each in by_place(one_and_two())] == ["net", "net.one"]


def test_nothing_is_freed_that_another_call_reads_in_the_backward_pass():
    t = one_and_two()
    t.op("mul", t.value(256), t.operators[0].writes[0], phase="backward", forward=2)
    assert ("net.one", 9) not in by_place(t)


def test_an_input_is_held_until_the_calls_own_backward_pass_ends():
    t = Table()
    x = t.op("rand", shape=(256,), line=1, module="data", facts={"dies": 1})
    h = t.op("exp", x, line=2, module="one", facts={"is_kept": True, "dies": 4})
    y = t.op("mul", h, line=3, module="one", facts={"dies": 3})
    t.op("neg", y, line=4, module="two", facts={"dies": 4})
    t.op("mul", h, phase="backward", forward=2)
    t.op("mul", t.value(256), phase="backward", forward=1)
    assert by_place(t)["one", 0] == ((3, 4, -KB), (2, 6, KB))


def test_each_call_of_a_line_is_computed_again_on_its_own():
    t = Table()
    h = t.value(256)
    for _ in range(2):
        h = t.op("exp", h, line=2, at=(7,), facts={"is_kept": True, "dies": 7})
        h = t.op("mul", h, line=3, at=(7,), facts={"is_kept": True, "dies": 7})
    for number in (3, 2, 1, 0):
        read = t.operators[number - number % 2].writes[0]
        t.op("mul", read, line=2, phase="backward", forward=number, facts={"dies": 7})
    (changes,) = (each for (_, line), each in by_place(t).items() if line == 7)
    assert [(first, end, size) for first, end, size in changes if size < 0] == [(2, 6, -KB)]


def test_operators_that_recur_within_a_call_are_of_one_call():
    t = Table()
    h = t.value(256)
    for name in ("one.0", "one.1", "one.2"):
        h = t.op("exp", h, line=2, module=name, facts={"is_kept": True, "dies": 6})
    for number in (2, 1, 0):
        t.op("mul", t.operators[number].writes[0], phase="backward", forward=number, facts={"dies": 5})
    assert by_place(t)["one", 2] == ((2, 3, -KB),)


def test_memory_of_another_device_is_not_counted():
    t = one_and_two()
    t.op("exp", t.value(1 << 20, device="cuda:0"), facts={"device": "cuda:0"})
    memory = step_memory(t.graph())
    assert (memory.device, memory.held.max()) == ("cpu", 4 * KB)


def test_each_line_keeps_what_it_makes_and_the_backward_pass_reads():
    found = kept_by_line(one_and_two().graph())
    assert (found.device, found.peak_bytes, found.num_bytes) == ("cpu", 4 * KB, 2 * KB)
    assert [(one.line.line, one.num_bytes, one.operators) for one in found.lines] == [(2, KB, (0,)), (3, KB, (1,))]


def test_a_storage_counts_once_and_the_line_with_most_stands_first():
    t = one_and_two()
    t.values.append(t.values[2]._replace(version=1))  # written again in place: it is kept in both versions
    t.op("sin", t.operators[0].reads[0], line=3, facts={"is_kept": True})
    lines = kept_by_line(t.graph()).lines
    assert [(one.line.line, one.num_bytes) for one in lines] == [(3, 2 * KB), (2, KB)]


def test_what_no_gradient_flows_through_is_no_call_that_can_be_computed_again():
    t = one_and_two()
    batch = t.op("randn", shape=(1024,), line=1, facts={"is_kept": True})
    t.op("mul", batch, line=4, phase="backward", forward=2)
    assert [one.line.line for one in kept_by_line(t.graph()).lines] == [2, 3]


def kept(operators, *changes):
    """Return calls that free memory between operators of the step."""
    return KeptMemory(None, None, "", tuple(operators), changes)


HELD = np.array([10, 50, 100, 50, 10])
LARGE, CHEAP, WHOLE = kept([1], (2, 3, -40)), kept([2], (2, 3, -20)), kept([1, 2], (2, 3, -60))


def chosen(most, *calls, times):
    """Return number, freed bytes and peak of each checkpoint."""
    return [(one.number, one.freed_bytes, one.peak_bytes) for one in checkpoints(HELD, calls, times, most)]


def test_what_frees_most_for_its_time_comes_first_until_the_budget_holds():
    assert chosen(85, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80)]
    assert chosen(75, LARGE, CHEAP, times=(100, 10)) == [(0, 40, 60)]  # the cheap one is no longer needed
    assert chosen(50, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80), (0, 30, 50)]


def test_nothing_is_chosen_where_the_step_fits():
    assert chosen(100, LARGE, times=(1,)) == []


def test_what_holds_its_memory_again_at_the_peak_lowers_it_by_the_difference():
    assert chosen(90, kept([1], (2, 3, -40), (3, 4, 45)), times=(1,)) == [(0, 5, 95)]


def test_a_call_that_includes_chosen_ones_replaces_them():
    assert chosen(45, LARGE, CHEAP, WHOLE, times=(10, 10, 1000)) == [(0, 40, 60), (1, 10, 50)]
    assert chosen(55, CHEAP, WHOLE, times=(10, 1000)) == [(1, 50, 50)]


def test_calls_whose_time_is_not_known_are_left_out():
    assert chosen(50, LARGE, times=(0,)) == []


def test_the_list_is_as_long_as_it_can_be_where_the_budget_cannot_be_reached():
    assert chosen(20, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80), (0, 30, 50)]

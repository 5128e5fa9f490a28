"""computed-again: operators that an earlier one of the step equals."""

from diagnose.analyzers import computed_again, dead_work
from diagnose.changes.common.prescribe import prescribe
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables
from tests.dataflow.test_repeats import two_passes


def test_what_is_computed_twice_is_named_with_both_lines(recording):
    def twice(t):
        x = t.value(4, 4)
        first, second = (t.op("exp", x, line=line, ns=200, content=f"y {t.step}") for line in (2, 3))
        return t.op("add", first, second, line=4, ns=200)

    (finding,) = computed_again.find(t := tables(recording, steps(twice)))
    assert (finding.lost_ns, finding.confidence) == (100_000, "high")
    assert finding.evidence[-1] == ("The step computes the same at line 2 of train.py and again at line 3 of train.py.")
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["reuse-result"]


def test_nothing_is_computed_again_where_the_first_result_is_not_read(recording):
    def first_in_vain(t):
        x = t.value(4, 4)
        _, second = (t.op("exp", x, line=line, ns=200, content=f"y {t.step}") for line in (2, 3))
        return t.op("neg", second, line=4, ns=200)

    t = tables(recording, steps(first_in_vain))
    assert computed_again.find(t) == []
    assert [(each.where[0].line, each.lost_ns) for each in dead_work.find(t)] == [(2, 100_000)]


def test_what_calls_nothing_else_goes_with_it(recording):
    def twice(t):
        x = t.value(4, 4)
        first, second = (t.op("exp", x, line=line, ns=200, content=f"y {t.step}") for line in (2, 3))
        return t.op("add", first, second, line=4, ns=200)

    (finding,) = computed_again.find(tables(recording, steps(twice), around=4))
    assert finding.lost_ns == 108_000


def test_equal_contents_that_were_computed_otherwise_are_not_named(recording):
    def by_chance(t):
        made = [t.op(name, t.value(4, 4), line=2, ns=100, content=f"x {t.step}") for name in ("exp", "log")]
        first, second = (t.op("sin", each, line=3, ns=100, content=f"y {t.step}") for each in made)
        return t.op("add", first, second, line=4, ns=100)

    assert computed_again.find(tables(recording, steps(by_chance))) == []


def test_backward_passes_through_the_same_operators_are_named_with_the_lines_that_start_them(recording):
    t = tables(recording, steps(two_passes))
    (finding,) = computed_again.find(t)
    assert finding.title == "The backward pass runs 2 times through the same operators"
    assert finding.evidence[-1] == (
        "2 backward passes go through the same operators, and their gradients are added up: started at line 6 of "
        "train.py and line 8 of train.py."
    )
    assert [place.line for place in finding.where] == [6, 8, 2]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["one-backward"]

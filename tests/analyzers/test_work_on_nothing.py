"""work-on-nothing: contents that make a part of the work needless."""

from dataclasses import replace

import pytest

from diagnose.analyzers import work_on_nothing
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.capture import CaptureInfo
from diagnose.model.records import ExpressionRecord, LoadedRecord, LoaderRecord
from diagnose.pipeline.find import build_tables
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, steps, tables


def test_a_product_with_one_hot_rows_costs_all_but_a_lookup(recording):
    def looked_up(t):
        rows = t.value(8, 100, kind="one-hot")
        return t.op("mm", rows, t.value(100, 4, role="parameter"), shape=(8, 4), line=5, ns=200)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(looked_up)))
    assert finding.lost_ns == pytest.approx(99_000)
    assert finding.title == "Rows of a weight are looked up by a product with one-hot rows"
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["index-lookup"]


def test_a_table_whose_rows_are_hardly_looked_up_costs_its_dense_gradient_and_update(recording):
    def trained(t):
        lookups, table = t.value(4, 8), t.value(100, 8, role="parameter")
        rows = {"shape": (100, 8), "phase": "backward", "facts": {"zero_rows": 0.9}}
        return t.update(table, t.op("embedding_dense_backward", lookups, line=5, ns=200, **rows), line=6, ns=200)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(trained)))
    assert finding.lost_ns == pytest.approx(180_000)
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["sparse-embeddings"]


def test_a_sort_of_which_few_are_read_costs_what_a_selection_saves(recording):
    def nearest(t):
        rows = t.op("sort", t.value(8, 100), line=5, ns=200)
        return t.op("sum", rows._replace(shape=(8, 5)), shape=(8,), line=6)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(nearest)))
    assert finding.lost_ns == pytest.approx(70_000)
    assert finding.evidence[-1] == "95 % of what line 5 of train.py sorts (8 × 100) is not read."
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["select-top-k"]


def test_of_rows_without_an_effect_the_longest_line_stands_first_and_the_text_has_the_one_to_select_before(recording):
    def headed(t):
        rows = t.op("mm", t.value(64, 8), t.value(8, 8, role="parameter"), shape=(64, 8), line=5, ns=10)
        t.op("sum", t.op("gelu", rows, line=6, ns=90), shape=(), line=8, ns=100)
        t.op("mul", rows, t.value(64, 1), line=7, ns=9)
        back = {"phase": "backward", "facts": {"zero_rows": 0.75}}
        made = len(t.operators) - 1
        gradient = t.op("mul", t.value(64, 8), shape=(64, 8), line=7, ns=10, forward=made, **back)
        t.op("mm", gradient, t.value(8, 8, role="parameter"), line=5, ns=1, forward=made - 3, **back)
        return t.op("exp", t.value(200), line=9, ns=10_000)

    assert work_on_nothing.find(tables(recording, steps(headed))) == []
    (finding,) = work_on_nothing.find(t := tables(recording, steps(headed), devices=GPU))  # what takes long there
    assert finding.title == "Operators compute rows that have no effect"
    assert [each.line for each in finding.where] == [7, 5]
    assert finding.evidence[-1] == (
        "75 % of the rows get no gradient from line 7 of train.py: they have no effect from line 5 of train.py on."
    )
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["gather-labelled-rows"]


@pytest.mark.parametrize(("shape", "is_found"), [((64,), True), ((), False)])
def test_subnormal_numbers_slow_an_operator_but_a_single_one_does_not(recording, shape, is_found):
    def scaled(t):
        t.op("mul", t.value(64), shape=(64,), line=3, ns=10)
        return t.op("mul", t.value(64), t.value(*shape, subnormal=1.0), shape=(64,), line=5, ns=200)

    assert bool(work_on_nothing.find(tables(recording, steps(scaled)))) == is_found


def test_of_a_padded_batch_the_function_that_makes_it_is_named_first(recording):
    def embedded(t):
        batch = t.value(4, 16, dtype="int64", padded=0.75)
        return t.op("embedding", t.value(9, 8, role="parameter"), batch, shape=(4, 16, 8), line=5, ns=200)

    made = tables(recording, steps(embedded))
    info = CaptureInfo(loader=LoaderRecord(batches_by=("data.py", 20, 24, "collate")))
    t = build_tables(capture := replace(made.capture, info=info), capture.trace)
    (finding,) = work_on_nothing.find(t)
    first = finding.where[0]
    assert (first.file, first.line, first.last_line, first.function) == ("data.py", 20, 24, "collate")
    line = ExpressionRecord(file="data.py", line=22, function="collate", padded_to=16)
    info = CaptureInfo(loader=info.loader, loaded=LoadedRecord(expressions=(line,)))
    t = build_tables(capture := replace(made.capture, info=info), capture.trace)
    assert [(w.file, w.line, w.last_line) for w in work_on_nothing.find(t)[0].where[:2]] == [
        ("data.py", 22, None), ("train.py", 5, None),
    ]  # fmt: skip


def test_signals_are_padded_only_if_loading_fills_them_up(recording):
    def signals(t):
        return t.op("mul", t.value(4, 16, padded=0.75), t.value(1, role="parameter"), line=5, ns=200)

    made = tables(recording, steps(signals))
    assert work_on_nothing.find(made) == []
    for length, num in ((16, 1), (20, 0)):
        line = ExpressionRecord(file="data.py", line=22, padded_to=length)
        info = CaptureInfo(loaded=LoadedRecord(expressions=(line,)))
        t = build_tables(capture := replace(made.capture, info=info), capture.trace)
        found = work_on_nothing.find(t)
        assert [one.facts["of_signals"] for one in found] == [True] * num


def test_rows_that_a_mask_multiplies_by_zero_are_named_where_others_can_be_selected_first(recording):
    def messages(t):
        mask = t.value(64, 1, zeros=0.75)
        rows = t.op("gelu", t.op("mm", t.value(64, 8), t.value(8, 8), line=5, ns=200), line=6, ns=200)
        left = t.op("mul", rows, mask, line=7, facts={"zero_rows": 0.75})
        return t.op("sum", left, shape=(8,), line=8)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(messages)))
    assert finding.title == "Operators compute rows that are multiplied by zero"
    assert finding.evidence[-1] == "A factor (64 × 1) multiplies 75 % of the rows by zero."
    assert [each.line for each in finding.where] == [5, 6, 7, 8]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["select-rows"]


def test_diagonal_matrices_are_named_where_they_are_made(recording):
    def scaled(t):
        matrix = t.op("diag_embed", t.value(4, 16), shape=(4, 16, 16), line=5, ns=20, facts={"zeros": 15 / 16})
        return t.op("bmm", matrix, t.value(4, 16, 8), shape=(4, 16, 8), line=6, ns=140)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(scaled)))
    assert finding.lost_ns == pytest.approx(187_500)  # of two operators of 100 µs
    assert [each.line for each in finding.where] == [5, 6]
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["keep-diagonal"]


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_normalized_again_is_named_where_it_is_called(recording, shared):
    def scored(t):
        def normalized(rows, **facts):
            norm = t.op("linalg_vector_norm", rows, shape=(100, 1), line=5, at=(9,), ns=50, facts=facts)
            return t.op("div", rows, norm, line=5, at=(9,), ns=50)

        if shared:
            normalized(t.value(100, 8))
        return normalized(t.value(100, 8, role="buffer"), is_one=True)

    (finding,) = work_on_nothing.find(t := tables(recording, steps(scored)))
    assert finding.title == "Values are normalized that are normalized already"
    assert [each.line for each in finding.where] == ([9, 5] if shared else [5, 9])
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["leave-out-call"]

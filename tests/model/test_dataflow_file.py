"""The data flow as a file: written and read again, and refused where it is damaged."""

import json

import pytest

from diagnose.errors import InputError
from diagnose.model.dataflow import Dataflow, Frame, Operator, Use, Value
from diagnose.model.dataflow_file import dataflow_from_json, dataflow_rows

USE = Use(0, (2, 3), (3, 1), 0, "float32")
STACK = (Frame("train.py", 7, "forward"), Frame("train.py", 20, "<module>"))


def flow():
    first = Operator(
        step=0, name="aten::exp", phase="forward", start_ns=0, host_ns=900, reads=(USE,),
        writes=(Use(1, (2, 3), (3, 1), 0, "float32"),), stack=STACK, module="net.fc", sequence_nr=4, thread=1 << 47,
        attributes="dim=1", draws=True, reads_host=True, is_collective=True, is_opaque=True,
    )  # fmt: skip
    second = Operator(
        step=1, name="aten::t", phase="backward", start_ns=1_000, host_ns=7, writes=(), stack=(),
        reads=(USE, Use(1, (3,), (1,), 3, "int64")), is_view=True, forward=0,
    )  # fmt: skip
    return Dataflow(
        operators=(first, second),
        values=(
            Value(storage=0, version=0, dtype="float32", shape=(2, 3), device="cpu", num_bytes=24, producer=-1,
                  role="parameter", name="net.fc.weight"),
            Value(storage=1, version=2, dtype="bool", shape=(), device="cuda:0", num_bytes=1, producer=0,
                  fingerprint="00ff", is_exact=True, zeros=0.25, padded=0.5, zero_rows=0.125, kind="one-hot",
                  subnormal=0.0625, is_kept=True, dies=1),
        ),
        num_steps=2, rank=3, left_out=("One sentence.",), cost_ns=12, roots=frozenset({1}),
    )  # fmt: skip


def rows():
    return json.loads(json.dumps(dataflow_rows(flow())))


def read(changed):
    return dataflow_from_json(json.dumps(changed).encode(), source="rank0.dataflow.json.gz", remedy="Trace it again.")


def test_every_field_is_read_as_it_was_written():
    assert read(rows()) == flow()


def test_what_repeats_is_there_once():
    found = rows()
    assert len(found["stacks"]) == 2  # with the empty one
    assert len(found["views"]) == 2
    assert found["texts"].count("float32") == 1


def test_columns_of_other_versions():
    """A column that is not known is passed over; one that is missing has its default."""
    found = rows()
    del found["values"]["subnormal"]
    found["values"]["colour"] = [1, 2]
    found["weather"] = "fine"
    assert [value.subnormal for value in read(found).values] == [0.0, 0.0]


def test_a_newer_schema():
    with pytest.raises(InputError, match=r"written by a newer diagnose \(schema 9\); please upgrade"):
        read({**rows(), "schema_version": 9})


@pytest.mark.parametrize(
    ("table", "column", "cells"),
    [
        ("operators", "name", [0]),  # too short
        ("operators", "name", [0, 10_000]),
        ("operators", "name", [0, -1]),
        ("operators", "reads", [[0, 0], [0]]),
        ("operators", "reads", [[0, 0], [0, 99]]),
        ("operators", "reads", [[0, 0], [99, 0]]),  # no such value
        ("operators", "reads", [1, 2]),
        ("operators", "forward", [-1, 2]),
        ("operators", "forward", [-2, 0]),
        ("operators", "step", [0, 2]),
        ("operators", "step", [0, 0.5]),
        ("operators", "phase", [0, 0]),  # "aten::exp" is none
        ("operators", "is_view", [0, 2]),
        ("operators", "stack", [0, 7]),
        ("values", "shape", [0, -3]),
        ("values", "producer", [-1, 2]),
        ("values", "dies", [-1, 5]),
        ("values", "zeros", [[1], 0.5]),
        ("values", "role", [0, 0]),
    ],
)
def test_columns_that_do_not_fit_are_one_error(table, column, cells):
    found = rows()
    found[table][column] = cells
    with pytest.raises(InputError, match=r"The columns of rank0.dataflow.json.gz do not fit together. Trace it again."):
        read(found)


@pytest.mark.parametrize("column", ["storage", "dtype", "producer"])
def test_a_column_that_must_be_there(column):
    found = rows()
    del found["values"][column]
    with pytest.raises(InputError, match="do not fit together"):
        read(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"roots": [2]},
        {"frames": [[0, 1, 900]]},
        {"stacks": [[900]]},
        {"views": [[900, 0, 0, 0]]},
    ],
)
def test_tables_that_do_not_fit_are_one_error(changed):
    with pytest.raises(InputError, match="do not fit together"):
        read({**rows(), **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"operators": 3},
        {"operators": {"name": ["exp"]}},
        {"num_steps": -1},
        {"roots": ["one"]},
        {"shapes": [["two"]]},
        {"schema_version": "one"},
    ],
)
def test_fields_of_another_type_are_named(changed):
    with pytest.raises(InputError, match=r"rank0.dataflow.json.gz cannot be used: its field .* Trace it again"):
        read({**rows(), **changed})


@pytest.mark.parametrize("text", [b"", b"[", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json(text):
    with pytest.raises(InputError, match=r"rank0.dataflow.json.gz (is|cannot)"):
        dataflow_from_json(text, source="rank0.dataflow.json.gz", remedy="Trace it again.")

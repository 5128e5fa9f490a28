"""The JSON contract: field names, units, sums, and a schema that every diagnosis follows."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.model.diagnosis import Partition
from diagnose.model.job import PURPOSES
from diagnose.reports.json import render, schema, to_dict

validator = pytest.importorskip("jsonschema", reason="the schema is checked with the package jsonschema")

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "json.md"
CONTRACT = {
    "schema_version", "tool", "source", "verdict", "dominant", "step_ms", "steps", "queue", "partition",
    "idle_by_cause", "findings", "prescriptions", "replay", "trust", "ranks", "trials",
}  # fmt: skip


def test_the_schema_is_a_valid_schema():
    validator.Draft202012Validator.check_schema(schema())


def test_the_schema_knows_every_purpose_of_a_collective():
    purposes = json.dumps(["", *PURPOSES])
    assert f'"purpose": {{"enum": {purposes}}}' in json.dumps(schema())


def test_every_form_follows_the_schema(any_form):
    loaded = json.loads(render(any_form), parse_constant=pytest.fail)
    validator.Draft202012Validator(schema()).validate(loaded)
    assert loaded.keys() >= CONTRACT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verdict", "fine"), ("step_ms", "20"), ("partition", {}), ("findings", [{}]), ("steps", -1), ("step_ms", -1),
        ("step_times_ms", [-1]), ("idle_by_cause", {"gc-pause": 1.1}), ("idle_by_cause", {"\x1b": 0.1}),
        ("critical_path", {"host": -0.004}), ("profiler_overhead", -2), ("recording_ms", -1), ("dominant", "a b"),
        ("replay", {"error_share": -0.1}),
    ],
)  # fmt: skip
def test_the_schema_refuses_what_is_wrong(forms, field, value):
    wrong = to_dict(forms["gaps"]) | {field: value}
    assert list(validator.Draft202012Validator(schema()).iter_errors(wrong))


def test_the_documentation_names_every_field(forms):
    text = DOCUMENTATION.read_text(encoding="utf-8")
    fields = set(to_dict(forms["gaps"]))
    for part in ("findings", "prescriptions", "operators", "ranks", "trials"):
        fields |= set(to_dict(forms["trials" if part == "trials" else "ranks"])[part][0])
    assert not [field for field in fields if f"`{field}`" not in text]


def test_the_schema_describes_every_field(forms):
    """A field that is written but not described would go unchecked."""
    described = schema()["properties"]
    assert set(to_dict(forms["gaps"])) == set(described)
    definitions = schema()["$defs"]
    for name, part in (("finding", "findings"), ("prescription", "prescriptions"), ("operator", "operators")):
        assert set(to_dict(forms["gaps"])[part][0]) == set(definitions[name]["properties"])


def test_shares_keep_their_sums(forms):
    third = 1 / 3
    d = replace(
        forms["gaps"],
        partition=Partition(third, third / 2, third / 2, third),
        idle_by_cause={f"cause-{i}": third / 7 for i in range(7)},
    )
    out = to_dict(d)
    assert math.isclose(sum(out["partition"].values()), 1, abs_tol=1e-8)
    assert math.isclose(sum(out["idle_by_cause"].values()), out["partition"]["idle"], abs_tol=1e-8)


def test_wrong_sums_are_not_hidden(forms):
    out = to_dict(replace(forms["gaps"], partition=Partition(0.5, 0.0, 0.0, 0.1)))
    assert sum(out["partition"].values()) == pytest.approx(0.6)


def test_units_are_milliseconds_and_shares_of_the_step(forms):
    out = to_dict(forms["gaps"])
    assert out["step_ms"] == 20
    assert out["step_times_ms"][:3] == [19.8, 19.9, 20]
    first = out["findings"][0]
    assert (first["rule"], first["lost_ms"], first["lost_share"]) == ("data-stall", 6, 0.3)
    assert (first["count"], first["total_ms"], first["median_ms"]) == (20, 60, 3)
    assert first["where"][0]["file"].endswith("train.py")
    assert (first["where"][0]["line"], first["examples"][0]["start_ms"]) == (31, 2)
    assert out["prescriptions"][0]["saves_ms"] == [4, 5.8]
    assert out["prescriptions"][0]["predicted_step_ms"] == pytest.approx(14.2)
    assert out["queue"]["delay_p50_ms"] == 0.045
    assert out["replay"] == {"error_share": 0.021}


def test_a_trial_gives_medians_and_samples(forms):
    trial = to_dict(forms["trials"])["trials"][0]
    assert (trial["baseline_ms"], trial["step_ms"]) == (20, 14.1)
    assert trial["baseline_samples_ms"] == [20, 20.4, 19.9]
    assert (trial["speed_up"], trial["interval"], trial["numerics"]) == (1.42, [1.38, 1.46], "identical")


def test_without_a_gpu_there_is_no_queue_and_no_partition(forms):
    out = to_dict(forms["no_gpu"])
    assert (out["verdict"], out["queue"], out["partition"]) == ("no-gpu", None, None)
    assert out["operators"][0] == {
        "name": "aten::mkldnn_convolution", "calls_per_step": 20, "self_ms": 4, "total_ms": 5,
        "shapes": "[[64, 64, 56, 56]]",
    }  # fmt: skip


def test_memory_by_line_is_in_bytes_and_ms(forms):
    memory = to_dict(forms["device"])["memory_by_line"]
    assert [(one["line"], one["bytes"], one["recompute_ms"]) for one in memory["kept"]] == [
        (31, 6 * 10**9, 12.0), (40, 2 * 10**9, None),
    ]  # fmt: skip
    assert [(one["line"], one["values"], one["bytes"]) for one in memory["left"]] == [(12, 3, 10**8)]
    assert to_dict(forms["gaps"])["memory_by_line"] is None


def test_several_ranks_are_listed(forms):
    assert [rank["step_ms"] for rank in to_dict(forms["ranks"])["ranks"]] == [18, 19, 20, 21]


def test_numbers_that_are_not_finite_become_null(forms):
    out = to_dict(forms["bare"])
    assert out["replay"]["error_share"] is None
    assert out["findings"][0]["lost_ms"] is None
    assert out["findings"][0]["facts"] == {"nan": None}


def test_text_is_ascii_and_strings_survive(forms, hostile_text):
    text = render(forms["hostile"])
    assert text.isascii()
    assert "\x1b" not in text
    headline = json.loads(text)["headline"]
    assert headline == hostile_text.replace("\udc80", "\\udc80")
    headline.encode("utf-8")

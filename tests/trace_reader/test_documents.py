"""The small files of a capture: what does not fit is one sentence with the file and the field."""

from __future__ import annotations

import gzip
import json

import pytest

from diagnose.errors import InputError
from diagnose.model.capture import CaptureInfo
from diagnose.model.records import DdpRecord, LoaderRecord, OptimizerRecord, as_facts, fitting
from diagnose.trace_reader import documents
from diagnose.trace_reader.documents import read_info, read_samples, read_steps

SECRET = "hf_" + "aB3" * 12
NESTED = "[" * 100_000 + "]" * 100_000  # beyond the limit that a compiler raised for the whole process, too


def info_error(tmp_path, text):
    path = tmp_path / "capture.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_info(path)
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ('"rank": -1', "its field rank is wrong (expected int >= 0)"),
        ('"rank": {}', "its field rank is wrong (expected int, got object)"),
        ('"rank": 2, "world_size": 2', "its rank 2 is not below its world_size 2"),
        ('"world_size": 0', "its field world_size"),
        ('"command": 5', "its field command"),
        ('"command": ["a", 1]', "its field command[1]"),
        ('"light_ms": ["12"]', "its field light_ms[0] is wrong (expected float, got str)"),
        ('"unprofiled_ms": [-1]', "its field unprofiled_ms[0]"),
        ('"unprofiled_ms": [1e999]', "its field unprofiled_ms[0] is wrong (number out of range)"),
        ('"unprofiled_ms": [NaN]', "is not valid JSON"),
        ('"gpus": [1]', "its field gpus[0]"),
        ('"gpus": {"name": "A"}', "its field gpus is wrong (expected array, got object)"),
        ('"light_file": "../a.json"', "its field light_file is wrong (expected a plain name)"),
        ('"samples_file": ".."', "its field samples_file"),
        ('"samples_file": 1.5', "its field samples_file"),
        ('"nvml": {"gpus": [{"throttle_reasons": [1e30]}]}', "its field nvml.gpus[0].throttle_reasons[0]"),
        ('"nvml": {"gpus": [{"other_processes": [{"memory_bytes": 1}]}]}', "nvml.gpus[0].other_processes[0]"),
        ('"optimizer": "SGD"', "its field optimizer"),
        ('"optimizer": {"others": [1.5]}', "its field optimizer.others[0]"),
        ('"memory": {"retries": -2}', "its field memory.retries"),
        ('"sampler": {"ready_share": true}', "its field sampler.ready_share"),
        ('"loader": {"num_workers": "2"}', "its field loader.num_workers"),
        ('"flags": {"ddp": {"bucket_cap_mb": []}}', "its field flags.ddp.bucket_cap_mb"),
        ('"notes": "x"', "its field notes"),
        (f'"notes": {NESTED}', "nested too deeply"),
        (f'"later": {NESTED}', "nested too deeply"),
    ],
)
def test_a_description_that_does_not_fit_names_its_field(tmp_path, fields, named):
    assert named in info_error(tmp_path, f'{{"schema_version": 1, {fields}}}')


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{}", "it has no schema_version"), ('{"schema_version": "1"}', "its field schema_version"),
        ('{"schema_version": 0}', "its field schema_version"), ('{"schema_version": 9}', "newer diagnose (schema 9)"),
        ("[]", "it is wrong (expected object, got array)"), ("{", "is not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_no_description(tmp_path, text, named):
    assert named in info_error(tmp_path, text)


def test_descriptions_of_other_releases_are_read(tmp_path):
    path = tmp_path / "capture.json"
    path.write_text('{"schema_version": 1, "world_size": 2, "loader": {"batch_size": 4, "later": 1}, "later": {}}')
    info = read_info(path)
    assert (info.world_size, info.loader) == (2, LoaderRecord(batch_size=4))
    assert (info.rank, info.optimizer, info.nvml.gpus) == (0, OptimizerRecord(), ())
    path.write_text('{"schema_version": 1, "command": ["\\udc80.py", "\\ud83d\\ude80"]}')  # a name not in UTF-8
    assert read_info(path).command == ("\ufffd.py", "\U0001f680")


def test_what_is_written_is_read_back():
    info = CaptureInfo(loader=LoaderRecord(num_workers=2, pin_memory=False), optimizer=OptimizerRecord(name="SGD"))
    assert CaptureInfo.from_json(json.dumps(info.to_json()), source="test") == info
    assert as_facts(info.loader) == {"num_workers": 2, "pin_memory": False}
    assert as_facts(info.optimizer) == {"class": "SGD"}


def test_a_writer_leaves_out_what_does_not_fit():
    noted = {"num_workers": "many", "batch_size": 8, "timeout": -1, "unknown": 1, "dataset": None}
    assert fitting(LoaderRecord, noted) == LoaderRecord(batch_size=8)
    assert fitting(OptimizerRecord, {"class": "SGD", "others": [{"class": "Adam"}]}).others[0].name == "Adam"
    assert fitting(DdpRecord, {}) == DdpRecord()


SAMPLES = {"places": [["train.py", 3, "main"]], "time_ns": [10, 20], "place": [0, -1], "running": [1, 0]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"time_ns": [2**70, 1]}, "its field time_ns[0]"),
        ({"time_ns": [-1, 1]}, "its field time_ns[0]"),
        ({"place": [2**40, 0]}, "its field place[0]"),
        ({"place": [1, 0]}, "do not fit together"),
        ({"place": [-2, 0]}, "its field place[0]"),
        ({"running": [2**53 + 1, 0]}, "its field running[0]"),
        ({"running": [1]}, "do not fit together"),
        ({"places": [["train.py", "3", "main"]]}, "its field places[0][1]"),
        ({"gc": [[5, 4]]}, "a collection in its field gc ends before it begins"),
        ({"gc": [[5]]}, "its field gc[0]"),
    ],
)
def test_samples_that_do_not_fit(tmp_path, change, named):
    path = tmp_path / "samples.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**SAMPLES, **change}).encode()))
    with pytest.raises(InputError) as caught:
        read_samples(path)
    assert named in str(caught.value)


STEPS = {"began_ns": [5, 9], "took_ns": [4, 3], "state": [0, 1], "phases": {"loading": [1, 0]}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"took_ns": [4]}, "do not fit together"),
        ({"phases": {"loading": [1]}}, "do not fit together"),
        ({"sampled_ns": [6], "path": [0]}, "do not fit together"),  # of no path
        ({"paths": [[]]}, "paths"),
        ({"state": [0, 4]}, "state"),
    ],
)
def test_steps_that_do_not_fit(tmp_path, change, named):
    path = tmp_path / "steps.json.gz"
    path.write_bytes(gzip.compress(json.dumps(STEPS | change).encode()))
    with pytest.raises(InputError, match=named):
        read_steps(path)


@pytest.mark.parametrize(
    ("read", "limit"),
    [(read_info, "MAX_INFO_BYTES"), (read_samples, "MAX_BYTES"), (read_steps, "MAX_BYTES")],
)
def test_a_file_that_grows_without_end_is_left_after_its_limit(tmp_path, monkeypatch, read, limit):
    monkeypatch.setattr(documents, limit, 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"0," * (2 << 20)))  # 4 MiB in 4 kB
    with pytest.raises(InputError, match="holds more than 1 MiB"):
        read(path)


def test_credentials_in_a_description_of_an_earlier_version_are_masked(tmp_path):
    path = tmp_path / "capture.json"
    fields = {"command": ["train.py", "--api-key", SECRET, "--lr=0.1"], "notes": [f"HF_TOKEN={SECRET} was set"]}
    path.write_text(json.dumps(CaptureInfo().to_json() | fields))
    info = read_info(path)
    assert info.command == ("train.py", "--api-key", "***", "--lr=0.1")
    assert info.notes == ("HF_TOKEN=*** was set",)

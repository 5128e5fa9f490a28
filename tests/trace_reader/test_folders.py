"""Files, folders of ranks and capture folders become one Capture a rank, or one sentence says why not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.model.capture import CaptureInfo
from diagnose.model.records import DequeRecord
from diagnose.trace_reader import open_captures


def trace_text(name: str = "aten::mm", **keys: Any) -> str:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    return json.dumps({"schemaVersion": 1, "traceEvents": [event], **keys})


def write_capture(folder: Path, rank: int = 0, world_size: int = 1, **more: Any) -> CaptureInfo:
    info = CaptureInfo(
        **{
            "run_id": "r1",
            "command": ("train.py", "--lr", "1"),
            "rank": rank,
            "world_size": world_size,
            "light_file": f"rank{rank}.light.pt.trace.json.gz",
            "attribution_file": f"rank{rank}.attribution.pt.trace.json.gz",
            "samples_file": f"rank{rank}.samples.json.gz",
            **more,
        }
    )
    folder.mkdir(exist_ok=True)
    name = "capture.json" if world_size == 1 else f"capture.rank{rank}.json"
    (folder / name).write_text(json.dumps(info.to_json()))
    (folder / f"rank{rank}.light.pt.trace.json.gz").write_bytes(gzip.compress(trace_text("light").encode()))
    (folder / f"rank{rank}.attribution.pt.trace.json.gz").write_bytes(gzip.compress(trace_text("named").encode()))
    samples = {"places": [["train.py", 3, "main"]], "time_ns": [10, 20], "place": [0, -1], "running": [1, 0]}
    (folder / f"rank{rank}.samples.json.gz").write_bytes(gzip.compress(json.dumps(samples).encode()))
    return info


def test_a_file(tmp_path):
    (tmp_path / "a.json").write_text(trace_text())
    (capture,) = open_captures([tmp_path / "a.json"])
    assert capture.trace.names == ("aten::mm",)
    assert (capture.attribution, capture.info, capture.samples) == (None, None, None)


@pytest.mark.parametrize(
    "name", ["worker{}_step_12.1694.pt.trace.json", "rank-{}.json", "run7_rank_{}.json", "r{}.json"]
)
def test_ranks_in_file_names(tmp_path, name):
    for rank in (11, 0, 2):
        (tmp_path / name.format(rank)).write_text(trace_text())
    assert [capture.trace.rank for capture in open_captures([tmp_path])] == [0, 2, 11]


def test_what_a_file_says_goes_before_its_name(tmp_path):
    (tmp_path / "rank0.json").write_text(trace_text(distributedInfo={"rank": 5, "world_size": 8}))
    (capture,) = open_captures([str(tmp_path)])
    assert (capture.trace.rank, capture.trace.world_size) == (5, 8)


def test_profiler_files_go_before_other_json(tmp_path):
    (tmp_path / "rank0.pt.trace.json").write_text(trace_text())
    (tmp_path / "labels.json").write_text("{}")
    (capture,) = open_captures([tmp_path])
    assert capture.trace.trust == ()


def test_other_json_among_traces_is_left_out_with_a_note(tmp_path):
    (tmp_path / "rank0.json").write_text(trace_text())
    (tmp_path / "labels.json").write_text("{}")
    (capture,) = open_captures([tmp_path])
    assert "labels.json" in capture.trace.trust[0].text


def test_a_capture_folder(tmp_path):
    info = write_capture(tmp_path)
    (capture,) = open_captures([tmp_path])
    assert capture.info == info
    assert capture.trace.names == ("light",)
    assert capture.attribution is not None
    assert capture.attribution.names == ("named",)
    assert capture.samples is not None
    assert capture.samples.places == (("train.py", 3, "main"),)
    assert capture.samples.place.tolist() == [0, -1]
    assert capture.trace.trust == ()


def test_the_ranks_of_a_capture_folder(tmp_path):
    for rank in (1, 0):
        write_capture(tmp_path, rank, 2)
    captures = open_captures([tmp_path])
    assert [(c.trace.rank, c.trace.world_size, c.info.rank) for c in captures if c.info] == [(0, 2, 0), (1, 2, 1)]


def test_without_the_light_window_the_other_one_gives_the_times(tmp_path):
    write_capture(tmp_path, light_file="")
    (capture,) = open_captures([tmp_path])
    assert capture.trace.names == ("named",)
    assert capture.attribution is None
    assert "timing window is missing" in capture.trace.trust[0].text


def test_damaged_files_beside_the_timing_become_notes(tmp_path):
    write_capture(tmp_path)
    (tmp_path / "rank0.attribution.pt.trace.json.gz").unlink()
    (tmp_path / "rank0.samples.json.gz").write_text('{"places": [], "time_ns": [1], "place": [0], "running": []}')
    (capture,) = open_captures([tmp_path])
    assert (capture.attribution, capture.samples) == (None, None)
    assert [note.text.split("rank0.")[1] for note in capture.trace.trust] == [
        "attribution.pt.trace.json.gz does not exist. Check the path.",
        "samples.json.gz do not fit together. Trace the script again.",
    ]


def test_a_capture_without_any_window(tmp_path):
    write_capture(tmp_path, light_file="", attribution_file="")
    with pytest.raises(InputError, match="ended before a step was captured"):
        open_captures([tmp_path])


@pytest.mark.parametrize("difference", [{"run_id": "r2"}, {"command": ("other.py",)}])
def test_mixed_runs(tmp_path, difference):
    write_capture(tmp_path, 0, 2)
    write_capture(tmp_path, 1, 2, **difference)
    with pytest.raises(InputError, match=r"different runs .* Trace into an empty folder"):
        open_captures([tmp_path])


def test_mixed_runs_in_two_folders(tmp_path):
    write_capture(tmp_path / "a", 0, 2)
    write_capture(tmp_path / "b", 1, 2, run_id="r2")
    with pytest.raises(InputError, match="different runs"):
        open_captures([tmp_path / "a", tmp_path / "b"])


def test_one_rank_twice(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(trace_text())
    with pytest.raises(InputError, match=r"a\.json and .*b\.json are both of rank 0\. Name one trace for each rank"):
        open_captures([tmp_path])


def test_one_rank_described_twice(tmp_path):
    write_capture(tmp_path, 0, 2)
    (tmp_path / "capture.rank1.json").write_text((tmp_path / "capture.rank0.json").read_text())
    with pytest.raises(InputError, match="both of rank 0"):
        open_captures([tmp_path])


def test_folders_without_traces(tmp_path):
    with pytest.raises(InputError, match=r"holds no traces \(\*\.json"):
        open_captures([tmp_path])
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(InputError, match="no list 'traceEvents'"):
        open_captures([tmp_path])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 99}'])
def test_a_damaged_description(tmp_path, text):
    (tmp_path / "capture.json").write_text(text)
    with pytest.raises(InputError, match=r"capture\.json"):
        open_captures([tmp_path])


def test_nothing_outside_the_folder_is_read(tmp_path):
    write_capture(tmp_path / "capture", light_file="../secret.json", attribution_file="")
    (tmp_path / "secret.json").write_text(trace_text())
    with pytest.raises(InputError, match=r"light_file is wrong \(expected a plain name\)"):
        open_captures([tmp_path / "capture"])


def test_stored_lines_are_read_with_a_capture(tmp_path):
    write_capture(tmp_path, lines_file="rank0.lines.json.gz")
    stored = {"files": {"train.py": {"sha256": "0", "changed_at": "", "lines": {"3": "loss.item()"}}}}
    (tmp_path / "rank0.lines.json.gz").write_bytes(gzip.compress(json.dumps(stored).encode()))
    (capture,) = open_captures([tmp_path])
    assert capture.lines == {("train.py", 3): "loss.item()"}
    (tmp_path / "rank0.lines.json.gz").write_text('{"files": 3}')
    (capture,) = open_captures([tmp_path])
    assert (capture.lines, capture.loops, len(capture.trace.trust)) == ({}, {}, 1)


def test_files_below_the_working_folder_are_named_from_there(tmp_path):
    """A module's functions have absolute names, a script's the one it was given, the profiler's frames short ones."""
    write_capture(tmp_path, cwd="/home/me/project", lines_file="rank0.lines.json.gz")
    samples = {"places": [["/home/me/project/data.py", 3, "load"], ["/home/me/project2/x.py", 1, "f"]]}
    rows = {**samples, "time_ns": [10], "place": [0], "running": [1]}
    (tmp_path / "rank0.samples.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    file = {
        "sha256": "0",
        "changed_at": "",
        "lines": {"3": "load()"},
        "loops": {"2": 3},
        "draws": [3, 7],
        "seeded": [5],
    }
    file["deques"] = [{"line": 3, "last": 3, "name": "ITEMS", "built": 1}]
    stored = {"files": {"/home/me/project/data.py": file}}
    (tmp_path / "rank0.lines.json.gz").write_bytes(gzip.compress(json.dumps(stored).encode()))
    (capture,) = open_captures([tmp_path])
    assert [file for file, _, _ in capture.samples.places] == ["data.py", "/home/me/project2/x.py"]
    assert (capture.lines, capture.loops) == ({("data.py", 3): "load()"}, {"data.py": ((2, 3),)})
    assert (capture.draws, capture.seeded) == ({"data.py": (3, 7)}, {"data.py": (5,)})
    assert capture.deques == {"data.py": (DequeRecord(line=3, last=3, name="ITEMS", built=1),)}


@pytest.mark.parametrize("name", ["../other.json", "{absolute}", "..", "a\0b"])
def test_a_file_is_named_plainly(tmp_path, name):
    (tmp_path / "other.json").write_text(trace_text("elsewhere"))
    write_capture(tmp_path / "capture", attribution_file=name.format(absolute=tmp_path / "other.json"))
    with pytest.raises(InputError, match="its field attribution_file is wrong"):
        open_captures([tmp_path / "capture"])


def test_a_link_that_leaves_the_folder_is_not_read(tmp_path):
    (tmp_path / "other.json").write_text(trace_text("elsewhere"))
    folder = tmp_path / "capture"
    write_capture(folder, attribution_file="link.json")
    (folder / "link.json").symlink_to(tmp_path / "other.json")
    (capture,) = open_captures([folder])
    assert capture.attribution is None
    assert "outside itself" in capture.trace.trust[0].text


def test_a_link_within_the_folder_is_read(tmp_path):
    write_capture(tmp_path, attribution_file="link.json")
    (tmp_path / "link.json").symlink_to("rank0.attribution.pt.trace.json.gz")
    (capture,) = open_captures([tmp_path])
    assert capture.attribution is not None


def test_what_an_earlier_version_wrote_is_masked(tmp_path):
    write_capture(tmp_path, command=("train.py", "--api-key", "abc"), notes=("failed at https://h/?token=abc",))
    (capture,) = open_captures([tmp_path])
    assert capture.info is not None
    assert capture.info.command == ("train.py", "--api-key", "***")
    assert capture.info.notes == ("failed at https://h/?token=***",)


def test_a_sampled_line_is_the_first_of_its_statement(tmp_path):
    write_capture(tmp_path, lines_file="rank0.lines.json.gz")
    samples = {
        "places": [["train.py", 4, "main"], ["train.py", 9, "main"]], "time_ns": [1, 2], "place": [0, 1],
        "running": [1, 1],
    }  # fmt: skip
    (tmp_path / "rank0.samples.json.gz").write_bytes(gzip.compress(json.dumps(samples).encode()))
    file = {"lines": {"3": "loss = f( x )", "9": "g()"}, "statements": {"3": 5}, "draws": [4, 9]}
    (tmp_path / "rank0.lines.json.gz").write_bytes(gzip.compress(json.dumps({"files": {"train.py": file}}).encode()))
    (capture,) = open_captures([tmp_path])
    assert capture.samples.places == (("train.py", 3, "main"), ("train.py", 9, "main"))
    assert capture.draws == {"train.py": (3, 9)}


def test_a_line_of_a_library_or_of_compiled_code_is_no_place_of_the_sampler(tmp_path):
    module = ["/opt/torch/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 1778, "_call_impl"]
    compiled, own = ["/tmp/torchinductor_ada/3q/c.py", 40, "call"], ["/home/me/project/train.py", 3, "main"]
    write_capture(tmp_path, steps_file="rank0.steps.json.gz")
    samples = {"places": [module, compiled, own], "time_ns": [1, 2, 3, 4], "place": [0, 1, 2, -1], "running": [1] * 4}
    (tmp_path / "rank0.samples.json.gz").write_bytes(gzip.compress(json.dumps(samples).encode()))
    run = {
        "began_ns": [4], "took_ns": [9], "state": [0],
        "paths": [[module, own], [compiled]], "sampled_ns": [3, 5, 6], "path": [0, 0, 1],
    }  # fmt: skip
    (tmp_path / "rank0.steps.json.gz").write_bytes(gzip.compress(json.dumps(run).encode()))
    (capture,) = open_captures([tmp_path])
    assert capture.samples.place.tolist() == [-1, -1, 2, -1]
    assert [capture.run.paths[row] for row in capture.run.path.tolist()] == [(tuple(own),)]
    assert capture.run.sampled_ns.tolist() == [5]

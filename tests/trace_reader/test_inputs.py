"""What a user may name beside a file: compressed traces, patterns, links, URLs."""

from __future__ import annotations

import builtins
import json

import pytest
import zstandard

from diagnose.errors import InputError
from diagnose.trace_reader import inputs, open_captures, read_trace, source


def trace_of(rank: int, num_events: int = 1) -> bytes:
    event = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{rank}", "pid": 1, "tid": 1, "dur": 2}
    events = [{**event, "ts": 10 * n + 1} for n in range(num_events)]
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}).encode()


def names(*paths) -> list[str]:
    return [capture.trace.names[0] for capture in open_captures(paths)]


PACKED = {
    "t.json.zst": zstandard.compress(trace_of(0)),
    "two frames.json.zst": zstandard.compress(trace_of(0)[:40]) + zstandard.compress(trace_of(0)[40:]),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_trace(tmp_path, name):
    (tmp_path / name).write_bytes(PACKED[name])
    assert names(tmp_path / name) == ["aten::op0"]
    assert names(tmp_path) == ["aten::op0"]


@pytest.mark.parametrize("path", ["run.zip", "run.tar.gz", "s3://bucket/run.tgz"])
def test_an_archive_is_to_be_unpacked(path):
    with pytest.raises(InputError, match=rf"^{path} is an archive\. Unpack it, and name the folder of its traces\.$"):
        open_captures([path])


@pytest.mark.parametrize("pattern", ["run/rank?.json", "run/rank[01].json", "**/rank*.json", "*"])
def test_a_quoted_pattern(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for rank in (0, 1):
        (tmp_path / "run" / f"rank{rank}.json").write_bytes(trace_of(rank))
    assert names(pattern) == ["aten::op0", "aten::op1"]
    with pytest.raises(InputError, match=r"rank\[5\]\.json matches no file\. Check the pattern\."):
        open_captures(["run/rank[5].json"])


def test_links_in_a_folder_lead_to_traces_elsewhere(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"node{rank}").mkdir()
        (tmp_path / f"node{rank}" / "t.json").write_bytes(trace_of(rank))
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json").symlink_to(tmp_path / "node0" / "t.json")
    (run / "rank1.json").symlink_to("../node1/t.json")
    (run / "folder.json").symlink_to(tmp_path / "node0")
    assert names(run) == ["aten::op0", "aten::op1"]
    (run / "circle.json").symlink_to("circle.json")
    (run / "gone.json").symlink_to("nowhere")
    found = inputs.list_inputs([run])
    assert sorted(str(rank) for rank in found.ranks) == [f"{run}/rank0.json", f"{run}/rank1.json"]
    assert found.faults == (
        f"{run}/circle.json is a broken link, and was left out. Repair or remove it.",
        f"{run}/gone.json is a broken link, and was left out. Repair or remove it.",
    )


def test_what_a_pattern_matches_and_cannot_be_opened_is_named_and_the_rest_is_read(tmp_path):
    (tmp_path / "rank0.json").write_bytes(trace_of(0))
    (tmp_path / "rank1.json").symlink_to("nowhere")
    found = inputs.list_inputs([f"{tmp_path}/rank*.json"])
    assert [str(rank) for rank in found.ranks] == [f"{tmp_path}/rank0.json"]
    assert found.faults == (f"{tmp_path}/rank1.json does not exist. Check the path.",)
    with pytest.raises(InputError, match=r"rank1\.json does not exist\. Check the path\."):
        inputs.list_inputs([f"{tmp_path}/rank[1-9].json"])


def test_a_folder_of_nothing_but_broken_links(tmp_path):
    (tmp_path / "rank0.json").symlink_to("rank0.json")
    with pytest.raises(InputError, match=r"rank0\.json is a broken link, and was left out\. Repair"):
        open_captures([tmp_path])


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    (tmp_path / "rank[0].json").write_bytes(trace_of(0))
    assert names(tmp_path / "rank[0].json") == ["aten::op0"]


def test_what_expands_as_no_trace_does(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_MIN_CHECKED_BYTES", 1 << 20)
    bomb = b"[" + b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},' * 60_000
    (tmp_path / "bomb.json.any").write_bytes(zstandard.compress(bomb))
    with pytest.raises(InputError, match=r"expands to more than 100 times its size"):
        open_captures([tmp_path / "bomb.json.any"])


@pytest.mark.parametrize(
    ("module", "path", "sentence"),
    [
        (
            "zstandard",
            "t.json.zst",
            r"t\.json\.zst is compressed with zstd, .*: pip install 'torch-diagnose\[zstd\]'\.$",
        ),
        ("fsspec", "s3://b/run", r"^s3://b/run is at a URL, .*: pip install 'torch-diagnose\[remote\]'\.$"),
    ],
)
def test_without_an_extra_one_sentence_names_it(tmp_path, monkeypatch, module, path, sentence):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == module:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json.zst").write_bytes(PACKED["t.json.zst"])
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=sentence):
        open_captures([path])


def test_a_zstd_file_that_is_cut_off(tmp_path):
    data = zstandard.compress(trace_of(0, 20_000))
    (tmp_path / "t.json.zst").write_bytes(data[: len(data) // 2])
    trace = read_trace(tmp_path / "t.json.zst")
    assert trace.cut
    assert trace.trust[0].text.startswith("The file is cut off: ")

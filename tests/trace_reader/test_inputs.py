"""What a user may name beside a file: archives, patterns, and what in an archive is not to be trusted."""

from __future__ import annotations

import builtins
import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

import pytest
import zstandard

from diagnose.errors import InputError
from diagnose.trace_reader import inputs, open_captures, read_trace, source
from diagnose.trace_reader.folders import read_rank


def trace_of(rank: int, num_events: int = 1) -> bytes:
    event = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{rank}", "pid": 1, "tid": 1, "dur": 2}
    events = [{**event, "ts": 10 * n + 1} for n in range(num_events)]
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}).encode()


def names(*paths) -> list[str]:
    return [capture.trace.names[0] for capture in open_captures(paths)]


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


TWO = {"run/rank0.json": trace_of(0), "run/rank1.json.gz": gzip.compress(trace_of(1))}
PACKED = {
    "t.json.zst": zstandard.compress(trace_of(0)),
    "two frames.json.zst": zstandard.compress(trace_of(0)[:40]) + zstandard.compress(trace_of(0)[40:]),
    "t.json.zip": zip_of({"t.json": trace_of(0)}),
    "stored.zip": zip_of({"t.json.gz": gzip.compress(trace_of(0))}, zipfile.ZIP_STORED),
}
ARCHIVES = {
    "run.tar": tar_of(TWO),
    "run.tar.gz": tar_of(TWO, "w:gz"),
    "run.tar.zst": zstandard.compress(tar_of(TWO)),
    "run.zip": zip_of(TWO),
    "a name that shows nothing": tar_of(TWO, "w:gz"),
}
FROM_INPUT = ("run.zip", "a name that shows nothing")  # every day


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_trace(tmp_path, name):
    (tmp_path / name).write_bytes(PACKED[name])
    assert names(tmp_path / name) == ["aten::op0"]
    if name != "stored.zip":
        assert names(tmp_path) == ["aten::op0"]


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_ranks(tmp_path, name):
    (tmp_path / name).write_bytes(ARCHIVES[name])
    assert names(tmp_path / name) == ["aten::op0", "aten::op1"]
    (capture, _) = open_captures([tmp_path / name])
    assert capture.trace.path == f"{tmp_path / name}/run/rank0.json"


# What any of them holds is read above; of one whose name shows nothing the content alone tells what it is.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FROM_INPUT else [pytest.mark.full]) for name in ARCHIVES]
)
def test_an_archive_from_standard_input(name, tmp_path):
    command = [sys.executable, "-m", "diagnose", "analyze", "-", "--json"]
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, input=ARCHIVES[name], capture_output=True, check=True, env=temporary)
    assert [rank["rank"] for rank in json.loads(done.stdout)["ranks"]] == [0, 1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_archives(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.zip").write_bytes(zip_of({f"rank{rank}.json": trace_of(rank)}))
    assert names(tmp_path) == ["aten::op0", "aten::op1"]


def test_a_capture_folder_in_an_archive(tmp_path):
    light = {f"rank{rank}.light.pt.trace.json.gz": gzip.compress(trace_of(rank)) for rank in (0, 1)}
    info = {"schema_version": 1, "world_size": 2}
    described = {
        f"capture.rank{rank}.json": json.dumps({**info, "rank": rank, "light_file": name}).encode()
        for rank, name in enumerate(light)
    }
    (tmp_path / "run.tar.gz").write_bytes(
        tar_of({f"run/{n}": data for n, data in {**light, **described}.items()}, "w:gz")
    )
    assert names(tmp_path / "run.tar.gz") == ["aten::op0", "aten::op1"]
    with inputs.list_inputs([tmp_path / "run.tar.gz"]) as found:
        assert [sorted(rank.folder.members) for rank in found.ranks] == [[name] for name in light]


def test_what_is_listed_can_be_read_by_another_process(tmp_path):
    (tmp_path / "run.tar.gz").write_bytes(ARCHIVES["run.tar.gz"])
    with inputs.list_inputs([tmp_path / "run.tar.gz"]) as found:
        assert [read_rank(pickle.loads(pickle.dumps(rank))).trace.rank for rank in found.ranks] == [0, 1]


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
    with inputs.list_inputs([run]) as found:
        assert sorted(str(rank) for rank in found.ranks) == [f"{run}/rank0.json", f"{run}/rank1.json"]
        assert found.faults == (
            f"{run}/circle.json is a link that leads to no file, and was left out. Mend or remove it.",
            f"{run}/gone.json is a link that leads to no file, and was left out. Mend or remove it.",
        )


def test_what_a_pattern_matches_and_cannot_be_opened_is_named_and_the_rest_is_read(tmp_path):
    (tmp_path / "rank0.json").write_bytes(trace_of(0))
    (tmp_path / "rank1.json").symlink_to("nowhere")
    with inputs.list_inputs([f"{tmp_path}/rank*.json"]) as found:
        assert [str(rank) for rank in found.ranks] == [f"{tmp_path}/rank0.json"]
        assert found.faults == (f"{tmp_path}/rank1.json does not exist. Check the path.",)
    with pytest.raises(InputError, match=r"rank1\.json does not exist\. Check the path\."):
        inputs.list_inputs([f"{tmp_path}/rank[1-9].json"])


def test_a_folder_of_nothing_but_broken_links(tmp_path):
    (tmp_path / "rank0.json").symlink_to("rank0.json")
    with pytest.raises(InputError, match=r"rank0\.json is a link that leads to no file, and was left out\. Mend"):
        open_captures([tmp_path])


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    (tmp_path / "rank[0].json").write_bytes(trace_of(0))
    assert names(tmp_path / "rank[0].json") == ["aten::op0"]


def test_members_lead_nowhere_and_links_are_left_out(tmp_path):
    (tmp_path / "secret.json").write_bytes(trace_of(7))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("../../escaped.json")
        info.size = len(trace_of(0))
        tar.addfile(info, io.BytesIO(trace_of(0)))
        link = tarfile.TarInfo("rank1.json")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.json")
        tar.addfile(link)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "run.tar").write_bytes(buffer.getvalue())
    before = sorted(tmp_path.rglob("*"))
    assert names(tmp_path / "inner" / "run.tar") == ["aten::op0"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_description_in_an_archive_names_nothing_outside(tmp_path):
    (tmp_path / "secret.json").write_bytes(trace_of(7))
    described = json.dumps({"schema_version": 1, "light_file": "secret.json"}).encode()
    (tmp_path / "run.tar").write_bytes(tar_of({"capture.json": described}))
    with pytest.raises(InputError, match=r"run\.tar/secret\.json does not exist"):
        open_captures([tmp_path / "run.tar"])


def test_a_tar_that_is_cut_off(tmp_path):
    data = tar_of({"rank0.json": trace_of(0), "rank1.json": trace_of(1, 100)})
    (tmp_path / "run.tar").write_bytes(data[: data.index(b"aten::op1") + 2000])
    captures = open_captures([tmp_path / "run.tar"])
    assert [capture.trace.rank for capture in captures] == [0, 1]
    notes = [note.text for note in captures[1].trace.trust]
    assert notes[0].startswith("The file is cut off (reading it failed: the archive ends within it): ")
    assert "run.tar is cut off or damaged behind" in notes[1]


def test_a_tar_header_of_gigabytes_is_not_read(tmp_path):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "run.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    with pytest.raises(InputError, match=r"run\.tar is a damaged tar \(a header of 4,294,967,296 bytes\)"):
        open_captures([tmp_path / "run.tar"])


@pytest.mark.parametrize(
    "make", [zip_of, lambda files: tar_of(files, "w:gz"), lambda f: zstandard.compress(f["t.json"])]
)
def test_what_expands_as_no_trace_does(tmp_path, monkeypatch, make):
    monkeypatch.setattr(source, "_MIN_CHECKED_BYTES", 1 << 20)
    bomb = b"[" + b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2},' * 60_000
    (tmp_path / "bomb.json.any").write_bytes(make({"t.json": bomb}))
    with pytest.raises(InputError, match=r"expands to more than 100 times its size"):
        open_captures([tmp_path / "bomb.json.any"])


def test_a_member_of_a_zip_whose_checksum_is_wrong(tmp_path):
    data = zip_of({"rank0.json": trace_of(0)})
    checksum = zlib.crc32(trace_of(0)).to_bytes(4, "little")
    listed = data.rindex(checksum)
    (tmp_path / "run.zip").write_bytes(data[:listed] + bytes(4) + data[listed + 4 :])
    (capture,) = open_captures([tmp_path / "run.zip"])
    (note,) = capture.trace.trust
    assert note.text.startswith(
        "The file is complete, but reading it failed: its checksum in the archive is another one: "
    )


def test_a_zip_that_is_cut_off(tmp_path):
    (tmp_path / "run.zip").write_bytes(ARCHIVES["run.zip"][:-40])
    with pytest.raises(InputError, match=r"run\.zip is a damaged zip \(.*\)\. Copy or make it again\."):
        open_captures([tmp_path / "run.zip"])


def test_a_zip_without_a_method_that_is_known(tmp_path):
    (tmp_path / "run.zip").write_bytes(zip_of({"rank0.json": trace_of(0)}, zipfile.ZIP_LZMA))
    with pytest.raises(
        InputError, match=r"run\.zip/rank0\.json was left out: it is compressed by method 14\. Unpack it"
    ):
        open_captures([tmp_path / "run.zip"])


def test_an_archive_without_traces(tmp_path):
    (tmp_path / "run.tar").write_bytes(tar_of({"readme.txt": b"nothing", "._rank0.json": b"x"}))
    with pytest.raises(InputError, match=r"run\.tar holds no traces \(\*\.json"):
        open_captures([tmp_path / "run.tar"])


@pytest.mark.parametrize(
    ("module", "path", "sentence"),
    [
        (
            "zstandard",
            "t.json.zst",
            r"t\.json\.zst is compressed with zstd, .*: pip install 'torch-diagnose\[zstd\]'\.$",
        ),
        ("fsspec", "s3://b/run", r"^s3://b/run lies behind a URL, .*: pip install 'torch-diagnose\[remote\]'\.$"),
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


def test_without_space_for_a_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "run.tar.gz").write_bytes(ARCHIVES["run.tar.gz"])
    monkeypatch.setattr(tempfile, "TemporaryFile", _full_disk)
    with pytest.raises(
        Exception, match=r"a temporary file for .*run\.tar\.gz cannot be written: No space left"
    ) as error:
        open_captures([tmp_path / "run.tar.gz"])
    assert error.value.exit_code == 6


def _full_disk(**_):
    return io.FileIO("/dev/full", "wb")

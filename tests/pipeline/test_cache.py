"""Results found again by content: what changes a key, who may write, and what is never trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from diagnose.errors import DEBUG
from diagnose.model.serialization import pack, unpack
from diagnose.pipeline import rank_results as cache_module
from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.rank_results import (
    Cache,
    default_cache,
    diagnosis_of,
    packed_examination,
    packed_profile,
    unpack_examination,
)
from diagnose.trace_reader import open_captures
from diagnose.trace_reader.inputs import list_inputs
from tests.trace_reader.test_inputs import trace_of


@pytest.fixture
def cache(tmp_path) -> Cache:
    (tmp_path / "cache").mkdir()
    return Cache(tmp_path / "cache")


def rank_at(path):
    return list_inputs([path]).ranks[0]


def key_of(cache, path, what="x"):
    return cache.key(what, rank_at(path))


def test_the_key_is_the_content_and_not_size_or_time(cache, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(trace_of(1))
    state = path.stat()
    first = key_of(cache, path)
    path.write_bytes(trace_of(2))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert key_of(cache, path) != first
    path.write_bytes(trace_of(1))
    assert key_of(cache, path) == first
    assert key_of(cache, path, "y") != first


@pytest.mark.parametrize("at", [0, 65_535, 65_536, 3_000_000, 3_999_999])
def test_every_byte_counts(cache, tmp_path, at):
    data = bytearray(4_000_000)
    (tmp_path / "t.json").write_bytes(data)
    first = key_of(cache, tmp_path / "t.json")
    data[at] = 1
    (tmp_path / "t.json").write_bytes(data)
    assert key_of(cache, tmp_path / "t.json") != first


def test_blocks_that_change_places_change_the_key(cache, tmp_path):
    one, two = b"a" * (1 << 16), b"b" * (1 << 16)
    (tmp_path / "t.json").write_bytes(one + two)
    first = key_of(cache, tmp_path / "t.json")
    (tmp_path / "t.json").write_bytes(two + one)
    assert key_of(cache, tmp_path / "t.json") != first


def test_another_program_has_another_key(cache, tmp_path, monkeypatch):
    (tmp_path / "t.json").write_bytes(trace_of(0))
    first = key_of(cache, tmp_path / "t.json")
    monkeypatch.setattr(cache_module, "_program", lambda: "another")
    assert key_of(cache, tmp_path / "t.json") != first


def test_every_file_of_a_capture_counts(cache, tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "capture.json").write_text(
        json.dumps({"schema_version": 1, "light_file": "l.json", "steps_file": "s.json"})
    )
    (folder / "l.json").write_bytes(trace_of(0))
    first = key_of(cache, folder)
    (folder / "s.json").write_text("{}")
    second = key_of(cache, folder)
    (folder / "s.json").write_text("[]")
    assert len({first, second, key_of(cache, folder)}) == 3


def test_what_can_be_read_once_has_no_key(cache, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(trace_of(0),))
    writer.start()
    ranks = list_inputs([tmp_path / "pipe"]).ranks
    assert cache.key("x", *ranks) is None
    assert packed_profile(ranks[0], cache)
    writer.join()
    assert list(cache.folder.iterdir()) == []


def test_a_second_look_computes_nothing(cache, tmp_path, monkeypatch):
    (tmp_path / "t.json").write_bytes(trace_of(0, 50))
    files = rank_at(tmp_path / "t.json")
    first = diagnosis_of(files, cache, draw=True), packed_examination(files, cache, draw=True)
    monkeypatch.setattr("diagnose.pipeline.rank.analyze_rank", None)
    assert repr((diagnosis_of(files, cache, draw=True), packed_examination(files, cache, draw=True))) == repr(first)
    assert unpack_examination(first[1])[0].step_ns == first[0].step_ns
    with pytest.raises(TypeError):
        diagnosis_of(files, cache, draw=False)


def test_a_diagnosis_comes_back_as_it_was():
    (capture,) = open_captures(["fixtures/captures/slow_dataset"])
    diagnosis = analyze_rank(capture)
    assert repr(unpack(pack(diagnosis))) == repr(diagnosis)


def test_a_damaged_entry_counts_as_absent(cache):
    cache.put("k", b"result")
    (entry,) = cache.folder.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    entry.write_bytes(entry.read_bytes()[:-1] + b"x")
    assert cache.get("k") is None
    assert not entry.exists()


WRITER = """
import sys
from pathlib import Path
from diagnose.pipeline.rank_results import Cache
cache = Cache(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    cache.put("k", sys.argv[2].encode() * 100_000)
"""


def test_two_processes_that_write_one_entry(cache):
    """Both wait for a line, so that neither is done when the other begins; every read is one whole result or none."""
    command = (sys.executable, "-c", WRITER, str(cache.folder))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen((*command, letter), **pipes) for letter in "ab"]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    results, seen = {b"a" * 100_000, b"b" * 100_000}, set()
    while any(writer.poll() is None for writer in writers):
        seen.add(cache.get("k"))
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {None, *results}
    assert cache.get("k") in results
    assert [path.name for path in cache.folder.iterdir()] == ["k"]


def test_two_writers_of_one_entry(cache):
    results = [bytes([n]) * 100_000 for n in range(8)]
    writers = [threading.Thread(target=lambda r=r: [cache.put("k", r) for _ in range(20)]) for r in results]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(cache.get("k"))
    assert seen <= {None, *results}
    assert cache.get("k") in results
    assert [path.name for path in cache.folder.iterdir()] == ["k"]


def test_what_was_not_used_for_longest_goes_first(cache):
    cache = Cache(cache.folder, most_bytes=1000)
    for n in range(8):
        cache.put(f"k{n}", bytes(184))  # 200 with the checksum
        os.utime(cache.folder / f"k{n}", (n, n))
    cache.get("k0")
    cache.put("00", bytes(4))
    assert sorted(path.name for path in cache.folder.iterdir()) == ["00", "k0", "k6", "k7"]


def test_without_space_nothing_is_stored(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "replace_private", full)
    cache.put("k", b"result")
    assert cache.get("k") is None


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)
    monkeypatch.delenv("DIAGNOSE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == Cache(tmp_path / "xdg" / "diagnose")
    assert (tmp_path / "xdg" / "diagnose").stat().st_mode & 0o777 == 0o700
    (tmp_path / "xdg" / "diagnose").chmod(0o777)
    assert default_cache() == Cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == Cache(tmp_path / ".cache" / "diagnose")
    monkeypatch.setenv("DIAGNOSE_NO_CACHE", "1")
    assert default_cache() == Cache()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04.",
        b"\xc1",
        b"\x92\xa4Note",
        b"\x93\xa4Path\xa1x\xa1y",
        b"\x94\xa1#\xa2|O\x91\x01\xc4\x08" + bytes(8),
    ],
)
def test_bytes_that_hold_no_result_are_refused(data):
    with pytest.raises(ValueError, match="these bytes hold no result"):
        unpack(data)


def test_what_is_no_result_is_not_packed():
    with pytest.raises(TypeError, match="PosixPath is not a type of a result"):
        pack({"a": __import__("pathlib").Path("x")})

"""Results found again by content: what changes a key, who may write, and what is never trusted."""

from __future__ import annotations

import json
import os
import threading

import pytest

from diagnose.errors import DEBUG
from diagnose.pipeline.rank_results import (
    Cache,
    default_cache,
    diagnosis_of,
    packed_examination,
    packed_profile,
    unpack_examination,
)
from diagnose.trace_reader.inputs import list_inputs
from tests.trace_reader.test_inputs import trace_of


@pytest.fixture
def cache(tmp_path) -> Cache:
    (tmp_path / "cache").mkdir()
    return Cache(tmp_path / "cache")


def rank_at(path):
    return list_inputs([path]).ranks[0]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t.json").write_bytes(trace_of(1))
    return rank_at(tmp_path / "t.json")


def test_a_file_that_has_changed_has_no_result(cache, files, tmp_path):
    cache.put("x", files, b"result")
    (entry,) = cache.folder.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    assert (cache.get("x", files), cache.get("y", files)) == (b"result", None)
    with (tmp_path / "t.json").open("ab") as file:
        file.write(b" ")
    assert cache.get("x", files) is None


def test_where_nothing_can_be_written_nothing_is_stored(cache, files):
    cache.folder.rmdir()
    cache.put("x", files, b"result")
    assert cache.get("x", files) is None


def test_every_file_of_a_capture_counts(cache, tmp_path):
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "capture.json").write_text(
        json.dumps({"schema_version": 1, "light_file": "l.json", "steps_file": "s.json"})
    )
    (folder / "l.json").write_bytes(trace_of(0))
    cache.put("x", rank_at(folder), b"result")
    assert cache.get("x", rank_at(folder)) == b"result"
    (folder / "s.json").write_text("{}")
    assert cache.get("x", rank_at(folder)) is None


def test_what_can_be_read_once_has_no_key(cache, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(trace_of(0),))
    writer.start()
    (rank,) = list_inputs([tmp_path / "pipe"]).ranks
    assert packed_profile(rank, cache=cache)
    writer.join()
    assert list(cache.folder.iterdir()) == []


def test_a_second_look_computes_nothing(cache, tmp_path, monkeypatch):
    (tmp_path / "t.json").write_bytes(trace_of(0, 50))
    files = rank_at(tmp_path / "t.json")
    first = diagnosis_of(files, cache=cache, draw=True), packed_examination(files, cache=cache, draw=True)
    monkeypatch.setattr("diagnose.pipeline.rank.analyze_rank", None)
    assert repr(
        (diagnosis_of(files, cache=cache, draw=True), packed_examination(files, cache=cache, draw=True))
    ) == repr(first)
    assert unpack_examination(first[1])[0].step_ns == first[0].step_ns
    with pytest.raises(TypeError):
        diagnosis_of(files, cache=cache, draw=False)


def test_the_older_half_goes_if_all_are_too_large(tmp_path, monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)
    monkeypatch.delenv("DIAGNOSE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = default_cache().folder
    for n in range(4):
        with (folder / f"k{n}").open("wb") as file:
            file.truncate(60 << 20)
        os.utime(folder / f"k{n}", (n, n))
    default_cache()
    assert len(list(folder.iterdir())) == 4
    with (folder / "k4").open("wb") as file:
        file.truncate(60 << 20)
    default_cache()
    assert sorted(path.name for path in folder.iterdir()) == ["k3", "k4"]


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

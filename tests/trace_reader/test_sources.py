"""Where the bytes come from: pipes, standard input, special files, and files that expand without end."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from diagnose.errors import InputError, NotATraceError
from diagnose.trace_reader import open_captures, read_trace, source, stored

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}).encode()


@pytest.mark.parametrize("data", [TRACE, gzip.compress(TRACE)])
def test_a_named_pipe_is_read_to_its_end(tmp_path, data):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(data,))
    writer.start()
    assert len(read_trace(tmp_path / "pipe").events) == 1
    writer.join()


def test_a_named_pipe_into_which_nothing_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_WRITER_WAIT_S", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is empty\."):
        read_trace(tmp_path / "pipe")


@pytest.mark.parametrize("data", [TRACE, gzip.compress(TRACE)])
def test_standard_input(data):
    command = [sys.executable, "-m", "diagnose", "analyze", "-", "--json"]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    assert json.loads(done.stdout)["verdict"] == "no-gpu"
    assert b"error" not in done.stderr


def test_a_file_called_like_standard_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_bytes(TRACE)
    assert len(open_captures(["./-"])[0].trace.events) == 1


def test_a_terminal_is_not_read(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(InputError, match="Standard input is a terminal"):
        read_trace("-")


def test_what_is_no_file_to_read(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "one", tmp_path / "socket", "x" * 5000, "null\0", tmp_path / "one" / "inner"):
            with pytest.raises(InputError, match=r"cannot be opened \(.*\)\. Name a trace file\."):
                open_captures([path])
    with pytest.raises(NotATraceError, match="is not JSON"):
        read_trace("/dev/zero")


def test_a_disk_that_fails_gives_the_events_before_it(tmp_path, monkeypatch):
    events = ",".join(json.dumps({**EVENT, "ts": n}) for n in range(9000))
    (tmp_path / "t.json").write_text(f"[{events}]")
    monkeypatch.setattr(stored, "FileIO", _Failing)
    trace = read_trace(tmp_path / "t.json")
    assert trace.trust[0].text.startswith("The file is cut off (reading it failed: Input/output error): ")
    assert 0 < len(trace.events) < 9000


class _Failing(io.FileIO):
    """Fails at the second block."""

    def readinto(self, buffer):
        if self.tell() > 1 << 17:
            raise OSError(5, os.strerror(5))
        return super().readinto(buffer)


def test_a_file_that_expands_as_no_trace_does(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_MIN_CHECKED_BYTES", 1 << 20)
    event = json.dumps(EVENT).encode() + b","
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b"[" + event * 40_000))
    with pytest.raises(InputError, match=r"expands to more than 100 times its size \(\d MB so far\).*gunzip first"):
        read_trace(tmp_path / "bomb.json.gz")


def test_wide_text_is_named(tmp_path):
    (tmp_path / "t.json").write_text(TRACE.decode(), encoding="utf-16")
    with pytest.raises(InputError, match=r"is UTF-16 text, not UTF-8\. Convert it first"):
        read_trace(tmp_path / "t.json")


def test_without_memory_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "t.json").write_bytes(TRACE)
    monkeypatch.setattr("diagnose.trace_reader.file.finish", _without_memory)
    with pytest.raises(InputError, match="needs more memory than there is"):
        read_trace(tmp_path / "t.json")


def _without_memory(_rows):
    raise MemoryError

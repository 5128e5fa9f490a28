"""Frames of another process, read from its memory: by this Python, and by every other one that is at hand."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from array import array
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace

import pytest

from diagnose.capture.frames import stretch
from diagnose.capture.frames.layout import Memory, UnreadableError, addresses, find_layout
from diagnose.capture.frames.reader import EndedError, FrameReader
from diagnose.capture.frames.stretch import Order, Stretch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read on Linux")

FOLDER = Path(find_layout.__code__.co_filename).parents[1]
# It waits in a function that C called, and whose name and file need more than ASCII; a thread of its own waits too.
WAITING = """
import sys, threading
sys.path.append(sys.argv[1])
from frames.layout import addresses

class 字:
    def größe(self, _):
        print(json.dumps([*addresses(), threading.get_ident(), other.ident]), flush=True)
        return (
            sys.stdin.read()  # HERE
        )

def generated():
    yield from map(字().größe, [0])  # CALLER

import json
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
for _ in generated():  # OUTERMOST
    pass
"""
# What reads it: a process of the same Python, without anything but the standard library.
READING = """
import json, os, sys, time
sys.path.append(sys.argv[1])
from frames.layout import Addresses, find_layout
from frames.layout import Memory, UnreadableError
from frames.reader import FrameReader
*where, ident, other = json.loads(sys.argv[3])
layout = find_layout(Memory(os.getpid()))
reader = FrameReader(Memory(int(sys.argv[2])), layout, Addresses(*where), ("<frozen", "<shim>", sys.prefix))
thread = reader.thread(ident)
end = time.monotonic() + 60
while (seen := [each.place for each in reader.users(thread, ident, 9)])[0][1] != int(sys.argv[4]):
    assert time.monotonic() < end, seen  # it has printed and does not wait yet
idle = reader.users(reader.thread(other), other, 1)[0].place
print(json.dumps([seen, idle, sorted(each for _, each in reader.threads())]))
"""


def pythons():
    """Return this Python and those of other versions that can be run."""
    found = [sys.executable]
    for minor in range(11, 14):
        path = shutil.which(f"python3.{minor}")
        if path and minor != sys.version_info[1]:
            works = subprocess.run([path, "-c", "import ctypes"], capture_output=True, check=False).returncode == 0
            found += [path] if works else []
    return found


@pytest.mark.parametrize("python", pythons())
def test_the_lines_of_a_process_that_waits(python, tmp_path):
    script = tmp_path / "größe.py"
    script.write_text(WAITING, encoding="utf-8")
    here, caller, outermost = (
        next(i for i, text in enumerate(WAITING.splitlines(), 1) if text.endswith(f"# {mark}"))
        for mark in ("HERE", "CALLER", "OUTERMOST")
    )
    plain = [python, "-I", "-S"]
    with subprocess.Popen([*plain, script, FOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
        try:
            told = waiting.stdout.readline().decode()
            command = [*plain, "-c", READING, FOLDER, str(waiting.pid), told, str(here)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            waiting.kill()
    assert not done.stderr
    seen, idle, threads = json.loads(done.stdout)
    file = str(script)
    assert seen == [[file, here, "größe"], [file, caller, "generated"], [file, outermost, "<module>"]]
    assert idle[2] == "wait"
    assert threads == sorted(json.loads(told)[-2:])


@cache
def layout_of_this_python():
    """Return it as a new process finds it, which is what the sampler is: this one may have threads of the runner's."""
    find = (
        "import os, pickle, sys; from diagnose.capture.frames.layout import find_layout; "
        "from diagnose.capture.frames.layout import Memory; "
        "sys.stdout.buffer.write(pickle.dumps(find_layout(Memory(os.getpid()))))"
    )
    return pickle.loads(subprocess.run([sys.executable, "-c", find], capture_output=True, check=True).stdout)


@pytest.fixture
def own():
    """Return a reader of this process."""
    return FrameReader(Memory(os.getpid()), layout_of_this_python(), addresses(), ())


def test_every_line_of_a_function_has_its_own_instructions(own):
    code = test_the_lines_of_a_process_that_waits.__code__
    codes = own._codes
    read = codes.of(id(code), Memory(os.getpid()).read(id(code), codes.num_bytes))
    assert (read.file, read.name, read.size) == (code.co_filename, code.co_name, len(code.co_code))
    lines = {start: line for start, _, line in code.co_lines() if line is not None}
    assert {start: read.place(start)[1] for start in lines} == lines


def test_what_is_no_code_is_refused(own):
    data = Memory(os.getpid()).read(id("a text, and no code"), 64).ljust(own._codes.num_bytes, b"\0")
    with pytest.raises(UnreadableError):
        own._codes.of(id("a text, and no code"), data)


def test_code_that_takes_the_place_of_other_code_is_read_anew(own):
    """Its address is that of code which is gone: its name, file or lines tell it apart."""
    first = compile("pass", "first.py", "exec")
    second = first.replace(co_filename="second.py")
    memory = Memory(os.getpid())
    data = [memory.read(id(code), own._codes.num_bytes) for code in (first, second)]
    assert [own._codes.of(id(first), each).file for each in data] == ["first.py", "second.py"]


def test_a_thread_that_has_ended_is_not_read(own):
    waits, ends = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (waits.set(), ends.wait()))
    thread.start()
    waits.wait()
    address = own.thread(thread.ident)
    assert own.innermost(address, thread.ident).place[2] == "wait"
    ends.set()
    thread.join()
    with pytest.raises(EndedError):
        own.thread(thread.ident)
    with pytest.raises(EndedError):
        own.innermost(own.thread(threading.get_ident()), -1)


@pytest.mark.parametrize("address", [0, 8, 1 << 62, -1])
def test_memory_that_is_not_there(address):
    with pytest.raises(UnreadableError):
        Memory(os.getpid()).read(address, 8)


def test_a_wrong_address_ends_no_reader():
    """Any number may be read where a pointer was: nothing but UnreadableError comes of it."""
    memory = Memory(os.getpid())
    layout = layout_of_this_python()
    blocks = [bytes([fill]) * 4096 for fill in (0, 1, 255)] + [id(CodeType).to_bytes(8, "little") * 512]
    for block in blocks:
        wrong = FrameReader(memory, layout, addresses()._replace(thread=id(block) + 64), ())
        with pytest.raises(UnreadableError):
            wrong.innermost(id(block) + 64, int.from_bytes(block[:8], "little"))


class Reading:
    """Stands in for the reader: each reading sees the next line and takes so many ms on the clock."""

    def __init__(self, took_ms):
        self.now_ns, self.line, self._took_ms = 1_000_000_000, 0, iter(took_ms)

    def thread(self, _ident):
        return 1

    def users(self, _thread, _ident, _depth):
        self.line += 1
        self.now_ns += int(next(self._took_ms) * 1e6)
        return (SimpleNamespace(place=("train.py", self.line, "main")),)


@pytest.mark.parametrize(
    ("took_ms", "line", "seen_ns"),
    [
        ([0.2], 1, 1_000_100_000),
        ([3.0, 0.2], 2, 1_003_100_000),  # it lost its core: the line is of up to 3 ms later
        ([3.0, 0.8, 2.0], 2, 1_003_400_000),  # all take long: the quickest
    ],
)
def test_a_sample_lies_where_its_frames_were_read(monkeypatch, took_ms, line, seen_ns):
    reader = Reading(took_ms)
    monkeypatch.setattr(stretch, "time", SimpleNamespace(**vars(time) | {"time_ns": lambda: reader.now_ns}))
    order = Order(threading.get_ident(), threading.get_native_id(), 0, 1, 1.0, 10)
    taken = Stretch(order, reader, os.getpid())
    taken.look()
    rows = taken.take()
    taken.close()
    assert rows.places == ((("train.py", line, "main"),),)
    assert list(array("q", rows.time_ns)) == [seen_ns]

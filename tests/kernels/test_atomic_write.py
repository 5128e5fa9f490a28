"""Files appear whole or not at all, where a path leads, and nothing of a killed process is left."""

import ast
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from diagnose.kernels import _atomic_write
from diagnose.kernels._atomic_write import HOST, NewFile, atomic_write
from diagnose.kernels.shared_cache import SharedCache

WRITER = """
import sys
from pathlib import Path
from diagnose.kernels._atomic_write import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(b" and half")
"""
SAVER = """
import sys, torch
from diagnose.kernels.saving import BackgroundSaver

class Held:
    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        print("half", flush=True)
        sys.stdin.readline()
        return (int, ())

with BackgroundSaver() as saver:
    saver.save([torch.ones(1 << 16), Held()], sys.argv[1])
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def halfway(path, source=WRITER):
    """Yield a process that is in the middle of writing the file, until it is sent a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", source, path], text=True, **pipes) as process:
        assert process.stdout.readline() == "half\n"
        yield process
        process.kill()


@pytest.mark.parametrize("source", [WRITER, SAVER])
def test_a_killed_writer_leaves_what_was_there_and_the_next_write_removes_its_rest(source, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"earlier")
    with halfway(tmp_path / "model.pt", source) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "model.pt").read_bytes() == b"earlier"
    assert len(names(tmp_path)) == 2
    with atomic_write(tmp_path / "other.pt") as file:
        file.write(b"other")
    assert names(tmp_path) == ["model.pt", "other.pt"]


def test_a_living_writer_is_left_in_peace(tmp_path):
    with halfway(tmp_path / "model.pt") as process:
        with atomic_write(tmp_path / "other.pt") as file:
            file.write(b"other")
        assert len(names(tmp_path)) == 2
        process.communicate("go on\n")
        assert process.returncode == 0
    assert (tmp_path / "model.pt").read_bytes() == b"half and half"
    assert names(tmp_path) == ["model.pt", "other.pt"]


@pytest.mark.parametrize(("age_s", "is_left"), [(3600, True), (2 * 86_400, False)])
def test_what_another_host_left_goes_after_a_day(tmp_path, age_s, is_left):
    other = tmp_path / ".ffffffff-0123456789abcdef.partial"
    other.write_bytes(b"cut off")
    now = _atomic_write.time.time()
    os.utime(other, (now - age_s, now - age_s))
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"whole")
    assert other.exists() is is_left


def test_a_file_of_another_name_is_no_leftover(tmp_path):
    for name in (".model.partial", "notes.partial", f".{HOST}-0123.partial"):
        (tmp_path / name).write_bytes(b"mine")
    before = names(tmp_path)
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"whole")
    assert names(tmp_path) == sorted([*before, "model.pt"])


def test_a_file_that_was_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    lock, taken = _atomic_write.fcntl.flock, []

    def late(descriptor, how):
        if not taken:
            taken.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            taken[0].unlink()
        lock(descriptor, how)

    monkeypatch.setattr(_atomic_write.fcntl, "flock", late)
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"whole")
    assert (tmp_path / "model.pt").read_bytes() == b"whole"


def test_a_file_system_without_locks_is_written_and_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(_atomic_write.fcntl, "flock", no_locks)
    left = tmp_path / f".{HOST}-0123456789abcdef.partial"
    left.write_bytes(b"perhaps alive")
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"whole")
    assert names(tmp_path) == [left.name, "model.pt"]


def test_the_file_is_on_the_disk_before_it_has_its_name_and_the_folder_after(tmp_path, monkeypatch):
    synced = []

    def sync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_folder, (tmp_path / "model.pt").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"whole")
    assert synced == [(False, False), (True, True)]


def test_an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"earlier")

    def half():
        with atomic_write(tmp_path / "model.pt") as file:
            file.write(b"half")
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        half()
    assert names(tmp_path) == ["model.pt"]
    assert (tmp_path / "model.pt").read_bytes() == b"earlier"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed(tmp_path, exists):
    (tmp_path / "run").mkdir()
    if exists:
        (tmp_path / "run" / "model.pt").write_bytes(b"earlier")
    (tmp_path / "latest.pt").symlink_to("run/model.pt")
    with atomic_write(tmp_path / "latest.pt") as file:
        file.write(b"new")
    assert (tmp_path / "latest.pt").is_symlink()
    assert (tmp_path / "run" / "model.pt").read_bytes() == b"new"


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_a_new_file_follows_the_umask_and_a_replaced_one_keeps_its_mode(tmp_path, mask):
    before = os.umask(mask)
    try:
        for content in (b"first", b"second"):
            with atomic_write(tmp_path / "model.pt") as file:
                file.write(content)
            assert stat.S_IMODE((tmp_path / "model.pt").stat().st_mode) == (
                0o666 & ~mask if content == b"first" else 0o640
            )
            (tmp_path / "model.pt").chmod(0o640)
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
def test_a_replaced_file_keeps_its_owner(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"earlier")
    os.chown(tmp_path / "model.pt", 12_345, 23_456)
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"new")
    found = (tmp_path / "model.pt").stat()
    assert (found.st_uid, found.st_gid) == (12_345, 23_456)


def test_a_pipe_and_a_device_are_written_in_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with atomic_write(tmp_path / "pipe") as file:
        file.write(b"text")
    reader.join()
    assert read == [b"text"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only the superuser makes devices")
    with atomic_write(tmp_path / "null") as file:
        file.write(b"text")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_a_file_in_a_folder_that_cannot_be_written_is_written_in_place(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "model.pt").write_bytes(b"earlier and longer")
    monkeypatch.setattr(_atomic_write, "_locked", refused)
    with atomic_write(tmp_path / "model.pt") as file:
        file.write(b"new")
    assert (tmp_path / "model.pt").read_bytes() == b"new"
    with pytest.raises(PermissionError), atomic_write(tmp_path / "other.pt"):
        pass


def test_the_longest_name_of_a_file_can_be_written(tmp_path):
    with atomic_write(tmp_path / ("x" * 255)) as file:
        file.write(b"new")
    assert names(tmp_path) == ["x" * 255]


def test_a_file_that_can_be_made_again_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("it waits for the disk"))
    with NewFile(tmp_path / "sample", private=True, durable=False) as new:
        new.file.write(b"value")
        new.publish(force=True)
    assert stat.S_IMODE((tmp_path / "sample").stat().st_mode) == 0o600


def test_a_cache_that_makes_room_removes_what_a_killed_worker_left(tmp_path):
    cache = SharedCache(1000, path=tmp_path / "cache")
    left = cache.folder / f".{HOST}-0123456789abcdef.partial"
    left.write_bytes(b"cut off")
    for number in range(3):
        cache.put(str(number) * 32, bytes(600))
    assert not left.exists()
    cache.close()


def test_it_needs_python_only():
    tree = ast.parse(Path(_atomic_write.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} <= sys.stdlib_module_names

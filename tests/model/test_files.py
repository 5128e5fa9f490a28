"""A file appears whole or not at all, and over something that exists only where that was asked for."""

import errno
import os
import stat
import threading
from contextlib import contextmanager

import pytest

from diagnose.errors import OutputError, UsageError
from diagnose.kernels import _atomic_write
from diagnose.model import files
from diagnose.model.files import Reservation, check_distinct, printable, write_file

resource = pytest.importorskip("resource")


@contextmanager
def limited(num_bytes):
    """Let no file grow beyond so many bytes: the write that would do it fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def at_once(number, action):
    """Run ``action(i)`` in threads that begin together; return the messages of those that failed."""
    barrier, failures = threading.Barrier(number), []

    def run(i):
        barrier.wait()
        try:
            action(i)
        except OutputError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_one_is_refused(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no links")))
    monkeypatch.setattr(files, "check_file", lambda *_, **__: None)  # both have looked before either wrote
    failures = at_once(4, lambda i: write_file(tmp_path / "r.html", str(i) * 1000, force=False))
    assert failures == [f"{tmp_path}/r.html exists already; give another name, or --force to overwrite it."] * 3
    ((name, text),) = contents(tmp_path).items()
    assert name == "r.html"
    assert text == text[0] * 1000


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 8192, 9999])
@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path, num_bytes, force):
    before = {"r.txt": "mine"} if force else {}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with limited(num_bytes), pytest.raises(OutputError, match=r"r.txt cannot be written: File too large. Raise"):
        write_file(tmp_path / "r.txt", "x" * 10_000, force=force)
    assert contents(tmp_path) == before


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "r.txt", "text", force=False)
    assert contents(tmp_path) == {}


def test_modes_follow_the_umask_once_the_file_is_whole(tmp_path, monkeypatch):
    seen = []
    move_new = files.move_new
    monkeypatch.setattr(_atomic_write, "move_new", lambda old, new: (seen.append(old.name), move_new(old, new)))
    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        with umask(mask):
            write_file(tmp_path / f"{mask}.txt", "text", force=False)
        assert mode(tmp_path / f"{mask}.txt") == expected
    assert len(set(seen)) == 3
    with umask(0o022), files.NewFile(tmp_path / "new.txt"):
        (temporary,) = tmp_path.glob(".*.partial")
        assert mode(temporary) == 0o600


def test_links_are_never_written_through(tmp_path):
    (tmp_path / "elsewhere.txt").write_text("mine")
    (tmp_path / "link.txt").symlink_to("elsewhere.txt")
    (tmp_path / "dangling.txt").symlink_to("nowhere.txt")
    for name in ("link.txt", "dangling.txt"):
        with pytest.raises(OutputError, match="exists already"):
            write_file(tmp_path / name, "text", force=False)
        write_file(tmp_path / name, "text", force=True)
        assert not (tmp_path / name).is_symlink()
    assert contents(tmp_path) == {"elsewhere.txt": "mine", "link.txt": "text", "dangling.txt": "text"}


def test_pipes_and_devices_stay_what_they_are(tmp_path):
    write_file("/dev/null", "text", force=True)
    assert stat.S_ISCHR(files.Path("/dev/null").stat().st_mode)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "text", force=False)
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("folder", "folder is a folder; name a file in it."),
        ("file/r.txt", "file is not a folder; name one."),
        ("nowhere/r.txt", "does not exist; create it first."),
        ("x" * 300 + ".txt", "File name too long. Give a shorter name."),
        ("two\nlines", "two lines exists already"),
        ("nul\0", "Give another name."),
    ],
)
def test_impossible_places_are_one_sentence(tmp_path, name, sentence):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "two\nlines").write_text("")
    with pytest.raises(OutputError) as raised:
        write_file(tmp_path / name, "text", force=False)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_no_option_names_an_input_or_another_option_s_file(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("a.json")
    a, link, new = (str(tmp_path / name) for name in ("a.json", "link.json", "new.json"))
    with pytest.raises(UsageError, match=r"-o names .*link.json, which is read"):
        check_distinct({"-o": link}, [a])
    with pytest.raises(UsageError, match="--csv and --json both name"):
        check_distinct({"--csv": new, "--json": f"{tmp_path}/./new.json"})
    check_distinct({"--csv": "-", "--json": new, "--junit": "/dev/null", "--sarif": "/dev/null"}, [a])


def test_a_place_is_reserved_once(tmp_path):
    place = tmp_path / "a" / "b"
    with Reservation(place):
        with pytest.raises(BlockingIOError):
            Reservation(place)
        assert mode(place) == 0o700
    assert contents(tmp_path) == {}
    with Reservation(place):
        (place / "kept").write_text("kept")
    with Reservation(place) as again:
        assert again.made == []
    assert (place / "kept").exists()


def test_paths_are_printed_on_one_line():
    assert printable("a\tb\u2028ü\udcff") == r"a   b\u2028ü\udcff"
    assert len(printable("x" * 1000)) == 160

"""What is noticed when the user's own files change while trials run."""

import os
from pathlib import Path

import pytest

from diagnose.trials.limits import Changes, Originals


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "project"
    for name in ("data", ".git", "runs", "venv"):
        (found / name).mkdir(parents=True)
        (found / name / "x").write_bytes(b"x" * 100)
    return found


def test_what_changed_is_named_once_and_files_that_are_new_are_no_change(folder, tmp_path):
    watched = Originals([folder], without=[folder / "runs"])
    assert watched.look() == Changes({})
    for name in (".git/x", "runs/x", "venv/x", "data/new"):
        (folder / name).write_text("changed")
    assert watched.look() == Changes({}, (str(folder / "data/new"),))
    assert watched.look() == Changes({})
    (folder / "data" / "x").rename(tmp_path / "x")
    assert watched.look().text == f"{folder}/data/x is gone"


def test_a_change_of_the_same_size_and_time_is_seen(folder):
    file = folder / "data" / "x"
    for hashed in (1 << 20, 0):
        watched = Originals([folder], max_hashed_bytes=hashed)
        before = file.stat()
        file.write_bytes(bytes([hashed % 7]) * 100)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert watched.look().text == f"{file} was changed"


def test_the_same_content_and_time_written_again_is_no_change(folder):
    watched, file = Originals([folder]), folder / "data" / "x"
    before = file.stat()
    file.write_bytes(b"x" * 100)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watched.look() == Changes({})


def set_attribute(path):
    try:
        os.setxattr(path, "user.note", b"mine")
    except (AttributeError, OSError) as error:
        pytest.skip(f"no extended attributes here: {error}")


def set_owner(path):
    if os.geteuid():
        pytest.skip("only root gives files away")
    os.chown(path, 12345, -1)


ATTRIBUTES = {
    "mode": lambda path: path.chmod(0o711),
    "modification time": lambda path: os.utime(path, (1, 1)),
    "owner": set_owner,
    "extended attributes": set_attribute,
}


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("hashed", [1 << 20, 0])
def test_a_file_whose_attributes_are_set_is_named_with_them(folder, name, hashed):
    watched, file = Originals([folder], max_hashed_bytes=hashed), folder / "data" / "x"
    ATTRIBUTES[name](file)
    unknown = name == "modification time" and not hashed  # a large file may have been written
    assert watched.look().text == f"{file} {'was changed' if unknown else f'got another {name}'}"


def test_a_folder_is_named_whose_mode_is_set_and_not_for_what_is_made_in_it(folder):
    watched = Originals([folder])
    (folder / "data").chmod(0o755 if folder.stat().st_mode & 0o777 == 0o700 else 0o700)
    (folder / "runs" / "new").mkdir()
    assert watched.look() == Changes({str(folder / "data"): "got another mode"})


def test_what_links_lead_to_is_watched_up_to_a_number_of_entries_and_that_is_told(folder, tmp_path):
    watched = Originals([], [folder / "data", tmp_path / "later"])
    (tmp_path / "later").touch()
    (folder / "data" / "x").write_text("")
    assert watched.look().text == (
        f"{folder}/data/x was changed; {tmp_path}/later was made at the target of a broken link"
    )
    assert Originals([], [folder], max_linked_entries=2).unverified == [str(folder)]


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta"])
def test_an_environment_that_a_link_leads_to_is_not_looked_at(folder, mark):
    (folder / mark).touch()
    watched = Originals([], [folder], max_linked_entries=1)
    assert watched.unverified == []
    (folder / "data" / "x").write_text("")
    assert watched.look() == Changes({})


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found by /proc")
def test_a_log_that_another_process_still_writes_is_no_reason_to_stop(folder):
    with (folder / "prove.log").open("w") as log:
        watched = Originals([folder])
        log.write("one line more\n")
        log.flush()
        assert watched.look() == Changes({})


def test_a_pipe_is_not_opened(folder):
    os.mkfifo(folder / "pipe")
    watched = Originals([folder], [folder / "pipe"])
    assert watched.look() == Changes({})

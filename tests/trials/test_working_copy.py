"""The copy that trials run in: what is copied, what is linked, and that it is put back before every run."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from diagnose.errors import UsageError
from diagnose.trials.copying import CopyLimits, plan_copy
from diagnose.trials.workplace import WorkingCopy


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "log.txt").write_text("old")
    (folder / "weights.bin").write_bytes(b"0" * 100_000)
    return folder


def made(project, **options):
    copy = WorkingCopy(plan_copy(project, **options), project.parent / "copy")
    copy.restore()
    return copy


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_a_run_did_is_undone_and_the_original_is_never_reached(project):
    before = content(project)
    copy = made(project)
    (copy.path / "data" / "log.txt").write_text("new")
    with (copy.path / "weights.bin").open("r+b") as file:
        file.write(b"1")
    os.utime(copy.path / "weights.bin", ns=(0, (project / "weights.bin").stat().st_mtime_ns))
    (copy.path / "more").mkdir(mode=0o500)
    copy.restore()
    assert content(copy.path) == before
    shutil.rmtree(copy.path / "data")
    (copy.path / "data").symlink_to(project / "data")
    (copy.path / "weights.bin").rename(copy.path / "moved.bin")
    copy.restore()
    assert content(copy.path) == content(project) == before
    assert not (copy.path / "data").is_symlink()


def test_what_a_run_left_alone_is_not_copied_again(project):
    copy = made(project)
    inode = (copy.path / "weights.bin").stat().st_ino
    (copy.path / "data" / "log.txt").write_text("new")
    copy.restore()
    assert (copy.path / "weights.bin").stat().st_ino == inode
    assert (copy.path / "weights.bin").stat().st_mtime_ns == (project / "weights.bin").stat().st_mtime_ns


def test_links_stay_usable_and_lead_into_the_copy_where_they_can(project, tmp_path):
    for name, size in (("big", 2_000), ("small", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"x" * size)
    (project / "small").symlink_to("../small")
    (project / "big").symlink_to("../big")
    (project / "one").symlink_to(tmp_path / "small" / "x")
    (project / "inside").symlink_to(project / "data")
    (project / "gone").symlink_to("nowhere")
    (project / "outside").symlink_to(tmp_path / "later")
    (project / "above").symlink_to(tmp_path)
    plan = plan_copy(project, limits=CopyLimits(linked_file_bytes=1_000, linked_folder_bytes=1_000))
    copy = WorkingCopy(plan, tmp_path / "copy")
    copy.restore()
    (copy.path / "inside" / "log.txt").write_text("new")
    (copy.path / "small" / "x").write_text("new")
    (copy.path / "one").write_text("new")
    assert (project / "data" / "log.txt").read_text() == "old"
    assert (tmp_path / "small" / "x").read_text() == "xxx"
    assert (copy.path / "big" / "x").stat().st_size == 2_000
    assert (copy.path / "gone").readlink() == Path("nowhere")
    assert set(plan.linked) == {tmp_path / "big", tmp_path / "later", tmp_path}


def test_what_is_no_file_is_never_opened(project):
    os.mkfifo(project / "pipe")
    os.mkfifo(project / "other")
    (project / "null").symlink_to("/dev/null")
    (project / "to-pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(project)  # the name of a socket has a hundred characters at most
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        copy = made(project)
    assert sorted(path.name for path in copy.path.iterdir()) == [
        "data", "null", "other", "pipe", "to-pipe", "weights.bin"
    ]  # fmt: skip
    assert (copy.path / "pipe").is_fifo()


def test_holes_stay_holes(project):
    with (project / "sparse").open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
    copy = made(project)
    found = (copy.path / "sparse").stat()
    assert found.st_size == (50 << 20) + 3
    assert found.st_blocks * 512 < 1 << 20
    assert (copy.path / "sparse").read_bytes().endswith(b"\0end")


def test_tools_are_linked_and_their_caches_left_out(project):
    for name in ("env", "node_modules", ".mypy_cache"):
        (project / name).mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    copy = made(project)
    assert [(copy.path / name).is_symlink() for name in ("env", "node_modules")] == [True, True]
    assert not (copy.path / ".mypy_cache").exists()


def test_a_repository_is_copied_without_its_objects_which_are_only_read(project):
    for name in ("objects/pack", "refs/heads"):
        (project / ".git" / name).mkdir(parents=True)
    (project / ".git" / "objects" / "pack" / "huge.pack").write_bytes(b"0" * 10)
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    git = made(project).path / ".git"
    assert (git / "objects" / "info" / "alternates").read_text() == f"{project}/.git/objects\n"
    assert sorted(path.name for path in git.rglob("*") if path.is_file()) == ["HEAD", "alternates"]


def test_a_copy_within_its_source_does_not_copy_itself(project):
    copy = WorkingCopy(plan_copy(project, without=[project / "runs"]), project / "runs" / "cwd")
    copy.restore()
    again = plan_copy(project, without=[project / "runs"])
    assert sorted(again.entries) == ["data", "data/log.txt", "weights.bin"]


@pytest.mark.parametrize("limits", [CopyLimits(entries=2), CopyLimits(num_bytes=1000), CopyLimits(free_share=1 << 50)])
def test_a_folder_that_holds_too_much_is_refused_with_a_remedy(project, limits):
    with pytest.raises(UsageError, match="--cwd-mode same"):
        plan_copy(project, limits=limits)


def test_a_file_that_vanishes_before_it_is_copied_is_one_sentence(project):
    plan = plan_copy(project)
    (project / "weights.bin").unlink()
    with pytest.raises(UsageError, match=r"could not be copied: No such file.*weights\.bin"):
        WorkingCopy(plan, project.parent / "copy").restore()


def test_the_size_is_known_before_anything_is_copied(project):
    plan = plan_copy(project)
    assert (plan.num_files, plan.num_bytes, plan.size_text) == (2, 100_003, "100,003 bytes in 2 files")
    assert not plan.is_large
    assert plan_copy(project, limits=CopyLimits(announced_bytes=100_000)).is_large

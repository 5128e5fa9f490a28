import pytest

from diagnose.errors import UsageError
from diagnose.proof import scratch


def test_a_mirror_can_be_written_without_touching_the_original(tmp_path):
    source = tmp_path / "project"
    (source / "data").mkdir(parents=True)
    (source / "data" / "log.txt").write_text("old")
    scratch.mirror(source, tmp_path / "copy")
    (tmp_path / "copy" / "data" / "log.txt").write_text("new")
    (tmp_path / "copy" / "data" / "more.txt").write_text("more")
    assert (source / "data" / "log.txt").read_text() == "old"
    assert sorted(p.name for p in (source / "data").iterdir()) == ["log.txt"]


def test_large_files_and_tool_folders_are_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "COPIED_MB", 0.001)
    source = tmp_path / "project"
    (source / ".git").mkdir(parents=True)
    (source / "weights.bin").write_bytes(b"0" * 2000)
    scratch.mirror(source, tmp_path / "copy")
    assert (tmp_path / "copy" / ".git").is_symlink()
    assert (tmp_path / "copy" / "weights.bin").is_symlink()
    assert (tmp_path / "copy" / "weights.bin").read_bytes() == b"0" * 2000


def test_a_copy_within_its_source_does_not_copy_itself(tmp_path):
    (tmp_path / "train.py").write_text("pass")
    target = tmp_path / "runs" / "cwd"
    scratch.mirror(tmp_path, target)
    assert (target / "train.py").exists()
    assert not (target / "runs" / "cwd").exists()


def test_a_broken_link_is_no_reason_to_stop(tmp_path):
    source = tmp_path / "project"
    source.mkdir()
    (source / "gone").symlink_to("nowhere")
    scratch.mirror(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "gone").is_symlink()


def test_a_folder_that_holds_too_much_is_refused_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_ENTRIES", 3)
    source = tmp_path / "project"
    source.mkdir()
    for i in range(5):
        (source / str(i)).write_text("x")
    with pytest.raises(UsageError, match="--cwd-mode same"):
        scratch.mirror(source, tmp_path / "copy")

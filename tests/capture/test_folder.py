"""Capture folders appear whole or not at all."""

import pytest

from diagnose.capture.folder import CaptureFolder
from diagnose.captures import CaptureInfo
from diagnose.errors import OutputError


def made(target, *, rank=0, num_ranks=1, force=False, files=("rank0.light.pt.trace.json.gz",)):
    folder = CaptureFolder(target, rank=rank, num_ranks=num_ranks, force=force)
    for name in files:
        (folder.partial / name).write_text(name)
    folder.write_info(CaptureInfo(run_id="run", rank=rank))
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_there_before_it_is_published(tmp_path):
    folder = made(tmp_path / "capture")
    assert not (tmp_path / "capture").exists()
    assert folder.publish() == tmp_path / "capture"
    assert names(tmp_path) == ["capture"]
    assert names(tmp_path / "capture") == ["capture.json", "rank0.light.pt.trace.json.gz"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "capture").mkdir()
    made(tmp_path / "capture").publish()
    assert len(names(tmp_path / "capture")) == 2


def test_an_occupied_folder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        made(tmp_path)


def test_force_replaces_captures_and_nothing_else(tmp_path):
    target = tmp_path / "capture"
    made(target, files=("rank0.light.pt.trace.json.gz", "rank0.samples.json.gz")).publish()
    (target / "notes.txt").write_text("mine")
    made(target, force=True).publish()
    assert names(target) == ["capture.json", "notes.txt", "rank0.light.pt.trace.json.gz"]


def test_ranks_share_a_folder(tmp_path):
    target = tmp_path / "capture"
    folders = [made(target, rank=r, num_ranks=2, files=(f"rank{r}.light.pt.trace.json.gz",)) for r in (0, 1)]
    for folder in reversed(folders):
        folder.publish()
    assert len([name for name in names(target) if name.startswith("capture.rank")]) == 2
    with pytest.raises(OutputError):
        made(target, rank=1, num_ranks=2)
    again = [made(target, rank=r, num_ranks=2, force=True, files=()) for r in (0, 1)]
    for folder in again:
        folder.publish()
    assert names(target) == ["capture.rank0.json", "capture.rank1.json"]


def test_fewer_ranks_leave_none_of_the_old_ones(tmp_path):
    target = tmp_path / "capture"
    for rank in range(3):
        made(target, rank=rank, num_ranks=3, files=(f"rank{rank}.light.pt.trace.json.gz",)).publish()
    for rank in range(2):
        made(target, rank=rank, num_ranks=2, force=True, files=()).publish()
    assert names(target) == ["capture.rank0.json", "capture.rank1.json"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        made(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot be written"):
        made(tmp_path / "file" / "capture")


def test_the_description_is_read_back(tmp_path):
    made(tmp_path / "capture").publish()
    text = (tmp_path / "capture" / "capture.json").read_text()
    assert CaptureInfo.from_json(text, source="test").run_id == "run"

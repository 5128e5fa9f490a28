"""Capture folders appear whole or not at all."""

import gzip
import json
import os
import resource
import stat
import threading

import pytest

from diagnose.capture.record import folder as folder_module
from diagnose.capture.record.folder import CaptureFolder, unfinished
from diagnose.errors import OutputError
from diagnose.model import files as files_module
from diagnose.model.capture import CaptureInfo


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
    assert names(tmp_path / "capture") == []  # reserved
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


def test_the_second_of_two_runs_is_refused_when_it_starts(tmp_path):
    barrier, folders, refused = threading.Barrier(2), [], []

    def start():
        barrier.wait()
        try:
            folders.append(CaptureFolder(tmp_path / "capture", rank=0, num_ranks=1, force=False))
        except OutputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == [f"Another run is writing its capture to {tmp_path}/capture; give another name."]
    (folder,) = folders
    folder.discard()
    assert names(tmp_path) == []


def test_a_folder_that_another_run_has_made_is_removed_by_the_one_that_keeps_it(tmp_path, monkeypatch):
    locked, kept = files_module._locked, []

    def overtaken(path, *, create):
        monkeypatch.setattr(files_module, "_locked", locked)
        kept.append(CaptureFolder(tmp_path / "capture", rank=0, num_ranks=1, force=False))
        return locked(path, create=create)

    monkeypatch.setattr(files_module, "_locked", overtaken)
    with pytest.raises(OutputError, match="Another run"):
        CaptureFolder(tmp_path / "capture", rank=0, num_ranks=1, force=False)
    assert stat.S_IMODE((tmp_path / "capture").stat().st_mode) == 0o700
    kept[0].discard()
    assert names(tmp_path) == []


def test_two_runs_of_several_ranks_do_not_share_a_folder(tmp_path):
    first = made(tmp_path / "capture", rank=1, num_ranks=2)
    with pytest.raises(OutputError, match="Another run"):
        made(tmp_path / "capture", rank=1, num_ranks=2)
    made(tmp_path / "capture", rank=0, num_ranks=2, files=()).publish()
    first.publish()
    assert names(tmp_path / "capture") == ["capture.rank0.json", "capture.rank1.json", "rank0.light.pt.trace.json.gz"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_place_that_was_taken_meanwhile_costs_no_capture(tmp_path, num_ranks):
    target = tmp_path / "capture"
    folder = made(target, num_ranks=num_ranks)
    name = "capture.json" if num_ranks == 1 else "capture.rank0.json"
    (target / name).write_text("another's")
    place = folder.publish()
    assert place == tmp_path / (f"capture-{os.getpid()}" if num_ranks == 1 else f"capture.rank0-{os.getpid()}")
    assert names(place) == [name, "rank0.light.pt.trace.json.gz"]
    assert (target / name).read_text() == "another's"
    assert len(names(tmp_path)) == 2


def test_what_force_replaces_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    target = tmp_path / "capture"
    made(target, files=("rank0.light.pt.trace.json.gz", "rank0.samples.json.gz")).publish()
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    again = made(target, force=True)

    def full(source, goal):
        if goal.name == "capture.json":
            raise OSError(28, "No space left on device")
        source.rename(goal)

    monkeypatch.setattr("diagnose.capture.record.folder.move_new", full)
    with pytest.raises(OutputError, match=r"No space left on device. Free some space .* It is in .*partial-"):
        again.publish()
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert names(again.partial) == ["capture.json", "rank0.light.pt.trace.json.gz"]


def test_captures_are_their_owner_s_alone(tmp_path):
    before = os.umask(0)
    try:
        for num_ranks in (1, 2):
            folder = CaptureFolder(tmp_path / str(num_ranks), rank=0, num_ranks=num_ranks, force=False)
            folder.write_info(CaptureInfo())
            folder.write_rows("rank0.samples.json.gz", {"time_ns": []})
            place = folder.publish()
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
            assert len(names(place)) == 2
    finally:
        os.umask(before)


def test_a_description_fits_on_a_full_disk(tmp_path, monkeypatch):
    folder = made(tmp_path / "capture", files=())
    replace_private = folder_module.replace_private

    def full(path, data):
        if (folder.partial / ".spare").exists():
            raise OSError(28, "No space left on device")
        replace_private(path, data)

    monkeypatch.setattr(folder_module, "replace_private", full)
    folder.write_info(CaptureInfo(run_id="later"))
    folder.publish()
    assert names(tmp_path / "capture") == ["capture.json"]
    assert json.loads((tmp_path / "capture" / "capture.json").read_text())["run_id"] == "later"


@pytest.mark.parametrize("num_bytes", [0, 1, 10, 30])
def test_samples_that_find_no_room_leave_the_earlier_ones(tmp_path, num_bytes):
    folder = made(tmp_path / "capture", files=())
    folder.write_rows("rank0.samples.json.gz", {"time_ns": [1]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.write_rows("rank0.samples.json.gz", {"time_ns": list(range(1000))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(folder.partial) == [".spare", "capture.json", "rank0.samples.json.gz"]
    with gzip.open(folder.partial / "rank0.samples.json.gz") as packed:
        assert json.load(packed) == {"time_ns": [1]}


def test_links_and_folders_around_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(OutputError, match="is a link to nothing"):
        made(tmp_path / "dangling", force=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert made(tmp_path / "link").publish() == tmp_path / "real"
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    folder = made(tmp_path / "mounted")
    assert folder.partial.parent == tmp_path / "mounted"
    folder.publish()
    assert names(tmp_path / "mounted") == ["capture.json", "rank0.light.pt.trace.json.gz"]


def test_what_a_killed_process_of_the_same_number_left_is_kept(tmp_path):
    left = tmp_path / f"capture.partial-{os.getpid()}"
    left.mkdir()
    (left / "capture.json").write_text("earlier")
    assert unfinished(tmp_path / "capture") == [left]
    made(tmp_path / "capture").publish()
    assert names(tmp_path) == ["capture", f"{left.name}.1"]
    assert (tmp_path / f"{left.name}.1" / "capture.json").read_text() == "earlier"

import logging
import pickle

import pytest
import torch
from torch import nn

from diagnose.kernels.memory_snapshot import held_by_line, is_out_of_memory, live_tensors, memory_watch, snapshot_on_oom

KB = 1024


def kilobytes(count):
    return torch.ones(count * KB // 4)


def here(held):
    return {one.place.rpartition(" in ")[2]: (one.num_bytes // KB, one.count) for one in held if __file__ in one.place}


def lasting(kept):
    kept.append(torch.ones(3 * KB // 4))


def passing():
    return torch.ones(64 * KB // 4).sum() + (kilobytes(4) * 2).sum()


def test_peak_and_what_is_left():
    kept = [kilobytes(100)]  # before the block: not counted
    with memory_watch() as watch:
        lasting(kept)
        passing()
        lasting(kept)
    assert 67 * KB <= watch.peak_bytes < 68 * KB
    assert here(watch.at_peak())["lasting"] == (3, 1)
    assert here(watch.at_peak())["passing"][0] == 64
    assert here(watch.alive()) == {"lasting": (6, 2)}
    assert watch.allocated >= (64 + 4 + 4 + 6) * KB
    kept.pop()
    assert here(watch.alive()) == {"lasting": (3, 1)}, "what lives on is followed"
    assert "MB at the peak" in str(watch)
    assert "test_memory_snapshot.py" in str(watch)


def test_views_and_writes_in_place_allocate_nothing():
    x = kilobytes(8)
    with memory_watch() as watch:
        x.view(2, -1)[0].add_(1).mul_(2)
        x.t()
        torch.add(x, 1, out=x)
    assert (watch.peak_bytes, watch.alive()) == (0, [])


def test_a_training_step_is_seen_whole():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    x = torch.randn(128, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with memory_watch() as watch:
        model(x).sum().backward()
        optimizer.step()
    weights = sum(p.nbytes for p in model.parameters())
    left = sum(one.num_bytes for one in watch.alive())
    assert 3 * weights <= left < 3 * weights + KB, "gradients and two moments stay"
    assert watch.peak_bytes > left


def test_lines_of_a_snapshot():
    def block(size, line, state="active_allocated"):
        frames = [
            {"filename": "/c++/alloc.cpp", "line": 1, "name": "malloc"},
            {"filename": torch.__file__, "line": 2, "name": "linear"},
            {"filename": "/home/me/train.py", "line": line, "name": "forward"},
        ]
        return {"size": 512 * -(-size // 512), "requested_size": size, "state": state, "frames": frames}

    snapshot = {
        "segments": [
            {"blocks": [block(1000, 7), block(9000, 8, "inactive"), block(500, 9, "active_pending_free")]},
            {"blocks": [block(300, 9), {"size": 512, "state": "active_allocated"}]},
        ]
    }
    held = [(one.place, one.num_bytes, one.count) for one in held_by_line(snapshot)]
    assert held == [
        ("/home/me/train.py:7 in forward", 1000, 1),
        ("/home/me/train.py:9 in forward", 800, 2),
        ("a thread of torch, such as the backward pass", 512, 1),
    ]


def test_live_tensors_share_memory_once():
    x = torch.ones(333, 7)
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(333, 7)  # as compilers leave behind: it has no address
    views = [x[i] for i in range(5)]
    held = [one for one in live_tensors() if one.num_bytes == x.nbytes]
    assert len(held) == 1
    assert held[0].count == 1
    assert views
    assert fake is not None


def test_out_of_memory_is_recognised():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the report is another one with a GPU")
def test_report_when_memory_runs_out(tmp_path, caplog):
    large = torch.ones(77, 1024)
    with pytest.raises(RuntimeError, match="allocate"), snapshot_on_oom(tmp_path / "new" / "folder") as files:
        assert large.sum() > 0
        torch.empty(1 << 60, dtype=torch.uint8)
    (file,) = files
    assert file.parent == tmp_path / "new" / "folder"
    text = file.read_text()
    assert "by kind of tensor" in text
    assert "Tensor (77, 1024) torch.float32 on cpu" in text
    assert f"what held it is in {file}" in caplog.text


def test_other_errors_and_success_write_nothing(tmp_path):
    with pytest.raises(KeyError), snapshot_on_oom(tmp_path):
        raise KeyError
    with snapshot_on_oom(tmp_path) as files:
        pass
    assert files == list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.WARNING), pytest.raises(MemoryError), snapshot_on_oom(tmp_path) as files:
        raise MemoryError
    assert files == []
    assert "could not be written: No space left" in caplog.text


def test_history_is_recorded_and_switched_off_on_a_device(tmp_path, monkeypatch):
    """With torch's own functions replaced: what is asked of them, and what is written."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: asked.append(given))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": []})
    with pytest.raises(torch.OutOfMemoryError), snapshot_on_oom(tmp_path, max_entries=5) as files:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    assert asked == [{"max_entries": 5}, {"enabled": None}]
    text, picture = files
    assert text.read_text().startswith(
        "CUDA out of memory. Tried to allocate 2 GiB\n\n0.00 MB are held, by line of code"
    )
    assert pickle.loads(picture.read_bytes()) == {"segments": []}


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_entries >= 1, not 0"), snapshot_on_oom(tmp_path, max_entries=0):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="on a CUDA device only"), snapshot_on_oom(tmp_path, record=True):
            pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path):
    with pytest.raises(torch.OutOfMemoryError), snapshot_on_oom(tmp_path) as files:
        held = torch.ones(1 << 20, device="cuda")
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert held is not None
    assert "test_memory_snapshot.py" in files[0].read_text()

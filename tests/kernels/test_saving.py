"""Checkpoints written by a thread hold what the state was when they were asked for."""

import functools
import io
import os
import stat
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future

import pytest
import torch
from torch import nn

from diagnose.kernels import _unwritten
from diagnose.kernels.fast_load import fast_load
from diagnose.kernels.saving import BackgroundSaver


def test_the_file_holds_the_state_of_the_call(tmp_path):
    model = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with BackgroundSaver() as saver:
        saver.save(model.state_dict(), tmp_path / "model.pt")
        with torch.no_grad():
            model.weight.zero_()
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert isinstance(loaded, OrderedDict)
    assert all(torch.equal(loaded[name], value) for name, value in before.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_views_of_one_memory_stay_views_of_one(tmp_path, dtype):
    whole = torch.arange(7).to(dtype)
    with BackgroundSaver() as saver:
        saver.save({"whole": whole, "odd": [whole[1::2]], "shape": (3, "text")}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    loaded["whole"][1] = 0
    assert loaded["odd"][0].tolist()[0] == 0
    assert (loaded["odd"][0].stride(), loaded["shape"]) == ((2,), (3, "text"))
    assert whole[1] == torch.ones((), dtype=dtype)


def test_views_that_are_conjugate_or_negative_keep_their_values(tmp_path):
    a, b = torch.tensor([1 + 2j, 3 - 4j]), torch.tensor([1 + 2j, 3 - 4j])
    with BackgroundSaver() as saver:
        saver.save([a.conj(), b.conj().imag, torch._neg_view(a)], tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert [value.tolist() for value in loaded] == [[1 - 2j, 3 + 4j], [-2.0, 4.0], [-1 - 2j, -3 + 4j]]


def test_a_closed_saver_takes_nothing_more(tmp_path):
    with BackgroundSaver() as saver:
        saver.save({}, tmp_path / "first.pt")
    saver.close()
    with pytest.raises(RuntimeError, match=r"second\.pt cannot be saved: .* make another BackgroundSaver"):
        saver.save({}, tmp_path / "second.pt")


def test_parameters_gradients_and_optimizers_come_back(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with BackgroundSaver() as saver:
        saver.save({"optimizer": optimizer.state_dict(), "weight": model.weight}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert isinstance(loaded["weight"], nn.Parameter)
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_a_module_is_saved_whole(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    with BackgroundSaver() as saver:
        saver.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(loaded[0].weight, model[0].weight)


def test_an_error_is_raised_by_the_next_call_and_leaves_no_part_of_a_file(tmp_path):
    saver = BackgroundSaver()
    saver.save({}, tmp_path / "missing" / "state.pt")
    with pytest.raises(OSError, match="missing"):
        saver.wait()
    saver.save({}, tmp_path / "state.pt")
    saver.close()
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # torch's note that one process saves all
def test_a_sharded_checkpoint_holds_the_state_of_the_call(tmp_path):
    model = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with BackgroundSaver() as saver:
        saver.save_sharded({"model": model.state_dict(), "steps": [3]}, tmp_path / "step3")
        with torch.no_grad():
            model.weight.zero_()
        saver.wait()
        with pytest.raises(FileExistsError, match="step3 holds a checkpoint already"):
            saver.save_sharded({}, tmp_path / "step3")
    with pytest.raises(RuntimeError, match="was closed"):
        saver.save_sharded({}, tmp_path / "step4")
    loaded, report = fast_load(lambda: nn.Linear(2, 2), tmp_path / "step3", prefix="model.")
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in before.items())
    assert report.missing == ()


def test_a_second_file_waits_for_the_first(tmp_path):
    saver = BackgroundSaver(max_pending=1)
    for step in range(3):
        saver.save(torch.tensor(step), tmp_path / "last.pt")
    saver.close()
    assert torch.load(tmp_path / "last.pt", weights_only=True) == 2
    with pytest.raises(ValueError, match="max_pending >= 1"):
        BackgroundSaver(max_pending=0)


class LazyFuture(Future):
    """A file that is written when it is waited for."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def result(self):
        if not self.done():
            self.set_result(self.write())
        return super().result()


class Lazy:
    """A thread that writes each file when it is waited for."""

    def submit(self, write, *args):
        return LazyFuture(functools.partial(write, *args))

    def shutdown(self, *, wait):
        assert wait


@pytest.mark.parametrize(
    ("waited_for", "written"),
    [("1.pt", {"0.pt", "1.pt"}), (".", {"0.pt", "1.pt", "2.pt"}), ("other.pt", set()), ("2.pt/x", set())],
)
def test_one_file_or_folder_is_waited_for(tmp_path, monkeypatch, waited_for, written):
    saver = BackgroundSaver(max_pending=3)
    saver._pool.shutdown()
    monkeypatch.setattr(saver, "_pool", Lazy())
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        saver.save(torch.tensor(number), f"{number}.pt")
    saver.wait(waited_for)
    assert {path.name for path in tmp_path.iterdir()} == written
    saver.close()


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_files_are_under_way_than_asked_for(tmp_path, monkeypatch, most):
    saver = BackgroundSaver(max_pending=most)
    saver._pool.shutdown()
    monkeypatch.setattr(saver, "_pool", Lazy())
    for number in range(5):
        saver.save(torch.tensor(number), tmp_path / f"{number}.pt")
        assert len(list(tmp_path.iterdir())) == max(0, number + 1 - most)
    saver.close()
    assert [int(torch.load(tmp_path / f"{n}.pt", weights_only=True)) for n in range(5)] == list(range(5))


def test_a_copy_whose_file_is_written_lends_its_memory_to_the_next(tmp_path, monkeypatch):
    places = []

    class Noting(Lazy):
        def submit(self, write, state, path):
            places.append([value.data_ptr() for value in state])
            return super().submit(write, state, path)

    saver = BackgroundSaver(max_pending=2)
    saver._pool.shutdown()
    monkeypatch.setattr(saver, "_pool", Noting())
    for number in range(4):
        saver.save([torch.full((64,), number), torch.full((8,), float(number))], tmp_path / f"{number}.pt")
    saver.close()
    first, second, third, fourth = places
    assert set(first).isdisjoint(second)
    assert (third, fourth) == (first, second)
    assert [torch.load(tmp_path / f"{n}.pt", weights_only=True)[1][0] for n in range(4)] == [0, 1, 2, 3]


def test_the_next_call_raises_what_went_wrong_with_the_last(tmp_path):
    with BackgroundSaver() as saver:
        saver.save({}, tmp_path / "missing" / "state.pt")
        with pytest.raises(OSError, match="missing"):
            saver.save({}, tmp_path / "state.pt")


def test_a_buffer_is_written_at_once_as_torch_save_does(tmp_path):
    buffer = io.BytesIO()
    with BackgroundSaver() as saver:
        saver.save({"x": torch.ones(2)}, buffer)
        buffer.seek(0)
        assert torch.load(buffer, weights_only=True)["x"].tolist() == [1, 1]


def test_a_link_is_followed_and_a_file_keeps_its_mode(tmp_path):
    (tmp_path / "scratch").mkdir()
    target = tmp_path / "scratch" / "latest.pt"
    torch.save(0, target)
    target.chmod(0o640)
    (tmp_path / "latest.pt").symlink_to("scratch/latest.pt")
    with BackgroundSaver() as saver:
        saver.save(torch.ones(()), tmp_path / "latest.pt")
    assert (tmp_path / "latest.pt").is_symlink()
    assert torch.load(target, weights_only=True) == 1
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["latest.pt"]


def test_a_pipe_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with BackgroundSaver() as saver:
        saver.save({"x": torch.ones(2)}, tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    reader.join()
    assert torch.load(io.BytesIO(read[0]), weights_only=True)["x"].tolist() == [1, 1]


class Interrupted(Future):
    """What is interrupted when it is waited for the first time."""

    def result(self):
        if not self.done():
            self.set_exception(OSError("disk full"))
            self.done = lambda: False
            raise KeyboardInterrupt
        return super().result()


def test_an_interrupt_of_the_wait_loses_no_error(tmp_path, monkeypatch):
    saver = BackgroundSaver()
    monkeypatch.setattr(saver._pool, "submit", lambda *_: Interrupted())
    saver.save({}, tmp_path / "state.pt")
    with pytest.raises(KeyboardInterrupt):
        saver.wait()
    del saver._pending[0].writing.done
    with pytest.raises(OSError, match="disk full"):
        saver.wait()


def test_an_error_of_the_block_is_not_replaced_by_one_of_a_file(tmp_path, capsys, monkeypatch):
    def fails():
        with BackgroundSaver() as saver:
            saver.save({}, tmp_path / "missing" / "state.pt")
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        fails()
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    _unwritten._report()  # as when the process ends
    assert f"could not write {tmp_path}/missing/state.pt: FileNotFoundError" in capsys.readouterr().err


def test_a_relative_path_is_of_the_folder_that_was_current_when_it_was_saved(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    go_on = threading.Event()
    with BackgroundSaver() as saver:
        saver._pool.submit(go_on.wait)  # what is saved then has to wait
        saver.save(torch.ones(2), "model.pt")
        monkeypatch.chdir(tmp_path / "elsewhere")
        go_on.set()
        saver.wait()
    assert (tmp_path / "model.pt").exists()
    assert not (tmp_path / "elsewhere" / "model.pt").exists()

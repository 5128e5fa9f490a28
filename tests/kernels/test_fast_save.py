"""Weights written as safetensors files, read by fast_load and by the format's own package."""

import json

import pytest
import torch
from torch import nn

from diagnose.kernels import _atomic_write, fast_save
from diagnose.kernels.fast_load import fast_load, load_on_demand
from diagnose.kernels.fast_save import save_files
from diagnose.kernels.saving import BackgroundSaver

safetensors = pytest.importorskip("safetensors.torch", reason="the safetensors package is not installed")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(16, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Tied()


def same(a, b):
    one, other = a.state_dict(), b.state_dict()
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("max_bytes", "num"), [(1 << 20, 1), (40, 5), (1, 6)])
def test_fast_load_reads_what_was_saved(model, tmp_path, max_bytes, num):
    saved = save_files(model.state_dict(), tmp_path, max_bytes=max_bytes)
    assert (len(saved.files), saved.num_bytes, saved.resumed) == (num, 512 + 4 * 32 + 8, 0)
    loaded, report = fast_load(Tied, tmp_path)
    assert same(loaded, model)
    assert loaded.head.weight is loaded.embed.weight
    assert report.missing == ()
    assert same(fast_load(Tied, tmp_path, mapped=False)[0], model)
    on_demand, pending = load_on_demand(Tied, tmp_path)
    pending.load_rest()
    assert same(on_demand, model)


def test_files_and_index_are_those_of_the_format(tmp_path):
    state = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.int64), "c": torch.zeros(())}
    save_files(state, tmp_path, max_bytes=32)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]  # fmt: skip
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 12 + 32 + 4}
    assert index["weight_map"]["b"] == "model-00002-of-00003.safetensors"
    read = {}
    for file in sorted(set(index["weight_map"].values())):
        read |= safetensors.load_file(tmp_path / file)
    assert all(torch.equal(read[name], state[name]) and read[name].shape == state[name].shape for name in state)


@pytest.mark.parametrize("length", range(1, 9))
def test_tensors_begin_where_their_type_can_be_read(tmp_path, length):
    save_files({"n" * length: torch.ones(2, dtype=torch.float64)}, tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert begin % 8 == 0
    assert len(content) == begin + 16


@pytest.mark.parametrize("dtype", list(fast_save._DTYPES))
def test_every_dtype_keeps_its_bits(tmp_path, dtype):
    value = torch.tensor([[0.0, 1.0, -2.0], [3.5, 100.0, 7.0]]).to(dtype)
    save_files({"x": value, "empty": value[:0]}, tmp_path)
    read = safetensors.load_file(tmp_path / "model.safetensors")
    assert read["x"].dtype == dtype
    assert read["x"].view(torch.uint8).tolist() == value.view(torch.uint8).tolist()
    assert read["empty"].shape == (0, 3)


def test_views_become_tensors_of_their_own(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    z = torch.tensor([1 + 2j])
    square = torch.arange(9.0).reshape(3, 3)
    state = {"t": whole.t(), "row": whole[1], "wide": whole[:1].expand(5, 4), "conj": z.conj(), "z": z}
    state |= {"square": square, "turned": square.t(), "bits": square.view(torch.int32), "later": whole[2]}
    save_files(state, tmp_path)
    read = safetensors.load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in state.items())


def test_large_tensors_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(fast_save, "CHUNK_BYTES", 7)
    value = torch.arange(100)
    save_files({"x": value}, tmp_path)
    assert torch.equal(safetensors.load_file(tmp_path / "model.safetensors")["x"], value)


def test_names_of_one_memory_are_read_again_where_the_model_does_not_tie_them(tmp_path):
    def build():
        return nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})

    model = build()
    model["b"].weight = model["a"].weight
    saved = save_files(model.state_dict(), tmp_path)
    assert saved.num_bytes == 16
    assert same(fast_load(build, tmp_path)[0], model)


def states(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("model-*")}


def interrupted(state, folder, after=2, max_bytes=40):
    def stop(saved):
        if len(saved.files) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_files(state, folder, max_bytes=max_bytes, progress=stop)


def test_an_interrupted_save_goes_on(model, tmp_path):
    interrupted(model.state_dict(), tmp_path)
    before = states(tmp_path)
    with pytest.raises(FileNotFoundError, match="instead of one checkpoint"):
        fast_load(Tied, tmp_path)
    saved = save_files(model.state_dict(), tmp_path, max_bytes=40)
    assert (saved.resumed, len(saved.files), str(saved)) == (2, 5, "0.0 MB in 5 files, 2 of them written before")
    assert states(tmp_path).items() >= before.items()
    assert not list(tmp_path.glob(".*"))
    assert same(fast_load(Tied, tmp_path)[0], model)


def test_what_was_trained_on_since_is_written_again(model, tmp_path):
    interrupted(model.state_dict(), tmp_path)
    with torch.no_grad():
        model.embed.weight.add_(1)
    assert save_files(model.state_dict(), tmp_path, max_bytes=40).resumed == 1
    assert same(fast_load(Tied, tmp_path)[0], model)


def test_a_file_that_a_crash_cut_off_is_written_again(model, tmp_path):
    interrupted(model.state_dict(), tmp_path)
    (tmp_path / "model-00001-of-00005.safetensors").write_bytes(b"")
    assert save_files(model.state_dict(), tmp_path, max_bytes=40).resumed == 1
    assert same(fast_load(Tied, tmp_path)[0], model)


def test_parts_of_another_layout_are_removed(model, tmp_path):
    interrupted(model.state_dict(), tmp_path)
    (tmp_path / f".{_atomic_write.HOST}-0123456789abcdef.partial").write_bytes(b"cut off")
    assert len(save_files(model.state_dict(), tmp_path, max_bytes=1).files) == 6
    assert len(list(tmp_path.iterdir())) == 7
    assert same(fast_load(Tied, tmp_path)[0], model)


def test_one_part_alone_is_no_checkpoint(model, tmp_path):
    interrupted(model.state_dict(), tmp_path, after=1)
    with pytest.raises(FileNotFoundError, match=r"is one of 5 files, and .* lacks their index"):
        fast_load(Tied, tmp_path, strict=False)


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(_value, _before):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fast_save.zlib, "crc32", full)
    with pytest.raises(OSError, match="No space"):
        fast_save._write(tmp_path / "model.safetensors", b"", {"a": torch.ones(2)})
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(model, tmp_path):
    save_files(model.state_dict(), tmp_path / "a")
    with pytest.raises(FileExistsError, match=r"holds a checkpoint already \(model\.safetensors\)"):
        save_files(model.state_dict(), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "other.safetensors").write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match=r"holds other\.safetensors already"):
        save_files(model.state_dict(), tmp_path / "b")
    assert (tmp_path / "b" / "other.safetensors").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "got no tensors"),
        ({"epoch": 3}, "'epoch' is a int, and safetensors files hold tensors only"),
        ({3: torch.ones(1)}, "by their names, and 3 is not a name"),
        ({"w": torch.ones(1, device="meta")}, "'w' is on the meta device"),
        ({"w": torch.ones(2, 2).to_sparse()}, "'w' is of torch.sparse_coo"),
        ({"w": torch.ones(1, dtype=torch.complex128)}, "'w' is of torch.complex128"),
    ],
)
def test_what_the_format_cannot_hold_is_named(tmp_path, state, message):
    with pytest.raises(ValueError, match=message):
        save_files(state, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_thread_writes_the_state_of_the_call(model, tmp_path):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with BackgroundSaver() as saver:
        saver.save_files(model.state_dict(), tmp_path, max_bytes=40)
        with torch.no_grad():
            model.embed.weight.zero_()
    loaded = fast_load(Tied, tmp_path)[0].state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in before.items())
    with BackgroundSaver() as saver:
        saver.save_files(model.state_dict(), tmp_path)
        with pytest.raises(FileExistsError, match="holds a checkpoint already"):
            saver.wait()


def test_training_goes_on_from_saved_weights_as_if_nothing_had_been(tmp_path):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def train(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(3))
    save_files(model.state_dict(), tmp_path / "weights", max_bytes=64)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    train(model, optimizer, range(3, 6))
    again, _ = fast_load(build, tmp_path / "weights")
    resumed = torch.optim.AdamW(again.parameters())
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    train(again, resumed, range(3, 6))
    assert same(again, model)

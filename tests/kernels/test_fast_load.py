import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from diagnose.kernels.fast_load import fast_load


class Tied(nn.Module):
    """Tied weights, a persistent and an unsaved buffer, and a tensor that is a plain attribute."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((1,), 2.0))
        self.register_buffer("angles", torch.arange(width) / width, persistent=False)
        self.shift = torch.ones(width)

    def forward(self, x):
        return self.head(self.norm(self.embed(x) * self.angles + self.shift)) * self.scale


class LooksAtValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 1, 3)]
        self.weight = nn.Parameter(torch.randn(4))
        self.twin = self.weight


@pytest.fixture
def trained():
    torch.manual_seed(1)
    model = Tied()
    model(torch.arange(16)).sum().backward()
    return model.eval()


def tensors(model):
    return dict(model.state_dict())


def assert_same(a, b):
    assert list(tensors(a)) == list(tensors(b))
    for name, tensor in tensors(a).items():
        assert torch.equal(tensor, tensors(b)[name]), name
        assert tensor.dtype == tensors(b)[name].dtype


@pytest.mark.parametrize("mapped", [True, False])
def test_same_model_as_an_ordinary_load(trained, tmp_path, mapped):
    torch.save(trained.state_dict(), tmp_path / "m.pt")
    state = torch.get_rng_state()
    model, report = fast_load(Tied, tmp_path / "m.pt", mapped=mapped)
    assert torch.equal(torch.get_rng_state(), state), "building drew random numbers for good"
    assert_same(model, trained)
    assert torch.equal(model.eval()(torch.arange(16)), trained(torch.arange(16)))
    assert model.head.weight is model.embed.weight
    assert model.angles.device.type == model.shift.device.type == "cpu"
    assert report.num_bytes == sum(t.nbytes for t in {*trained.parameters(), *trained.buffers()})
    assert report.missing == report.unexpected == ()


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_weights_that_are_not_mapped_outlive_what_is_written_over_their_file(trained, tmp_path, name):
    path = tmp_path / name
    if name == "m.pt":
        torch.save(trained.state_dict(), path)
    else:
        pytest.importorskip("safetensors.torch").save_model(trained, str(path))
    model, _ = fast_load(Tied, path, mapped=False)
    with path.open("r+b") as file:  # in place: the same pages
        file.write(bytes(path.stat().st_size))
    assert_same(model, trained)


def test_weights_are_the_files_pages_and_the_file_is_never_written(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "m.pt")
    before = (tmp_path / "m.pt").read_bytes()
    model, _ = fast_load(Tied, tmp_path / "m.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.arange(16)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.embed.weight, trained.embed.weight)
    assert (tmp_path / "m.pt").read_bytes() == before
    assert len(optimizer.param_groups[0]["params"]) == len(list(trained.parameters()))


def test_a_large_model_costs_no_memory_until_it_is_used(tmp_path):
    def large():
        return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])  # 100 MB

    torch.save(large().state_dict(), tmp_path / "m.pt")
    anonymous = _anonymous()
    model, report = fast_load(large, tmp_path / "m.pt")
    assert report.num_bytes > 100e6
    assert _anonymous() - anonymous < 10e6
    assert model[0].weight.sum().isfinite()


def _anonymous():
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def test_dtypes(trained, tmp_path):
    torch.save(
        {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors(trained).items()}, tmp_path / "m.pt"
    )
    assert fast_load(Tied, tmp_path / "m.pt")[0].embed.weight.dtype is torch.float32, "an ordinary load casts too"
    assert fast_load(Tied, tmp_path / "m.pt", dtype="file")[0].embed.weight.dtype is torch.bfloat16
    model, _ = fast_load(Tied, tmp_path / "m.pt", dtype=torch.float64)
    assert model.embed.weight.dtype is torch.float64
    assert model.norm.num_batches_tracked.dtype is torch.int64


def test_one_entry_and_one_prefix_of_a_larger_file(trained, tmp_path):
    state = {f"module.{name}": tensor for name, tensor in tensors(trained).items()} | {"other.weight": torch.ones(2)}
    torch.save({"model": state, "step": 3}, tmp_path / "m.pt")
    assert_same(fast_load(Tied, tmp_path / "m.pt", key="model", prefix="module.")[0], trained)
    with pytest.raises(ValueError, match=r"dictionary of model, step instead of a state_dict.*key='model'"):
        fast_load(Tied, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="holds nothing under 'ema'; it holds a dictionary of model, step"):
        fast_load(Tied, tmp_path / "m.pt", key="ema")
    with pytest.raises(ValueError, match=r"No name in .* begins with 'net.'"):
        fast_load(Tied, tmp_path / "m.pt", key="model", prefix="net.")


def test_ties_provide_what_a_checkpoint_leaves_out(trained, tmp_path):
    state = tensors(trained)
    del state["head.weight"]
    torch.save(state, tmp_path / "m.pt")
    model, report = fast_load(Tied, tmp_path / "m.pt")
    assert model.head.weight is model.embed.weight
    assert report.missing == ()


def test_what_does_not_fit_is_named(trained, tmp_path):
    state = tensors(trained)
    state["extra"] = state.pop("scale")
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="lacks scale and holds besides extra; name the right prefix"):
        fast_load(Tied, tmp_path / "m.pt")
    torch.save(trained.state_dict(), tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"size mismatch for embed.weight"):
        fast_load(lambda: Tied(width=4), tmp_path / "m.pt")


def test_missing_modules_initialise_themselves_when_allowed(trained, tmp_path):
    state = {k: v for k, v in tensors(trained).items() if k not in ("norm.bias", "norm.running_var")}
    state["norm.weight"] = torch.full((8,), 5.0)
    torch.save(state, tmp_path / "m.pt")
    model, report = fast_load(Tied, tmp_path / "m.pt", strict=False)
    assert report.missing == ("norm.bias", "norm.running_var")
    assert torch.equal(model.norm.weight, torch.full((8,), 5.0)), "a loaded tensor was initialised again"
    assert torch.equal(model.norm.bias, torch.zeros(8))
    assert torch.equal(model.norm.running_var, torch.ones(8))
    del state["scale"]
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="Tied '' lacks values and has no reset_parameters"):
        fast_load(Tied, tmp_path / "m.pt", strict=False)


def test_ties_stay_where_neither_side_was_loaded(trained, tmp_path):
    torch.save({k: v for k, v in tensors(trained).items() if "d.weight" not in k}, tmp_path / "m.pt")
    model, report = fast_load(Tied, tmp_path / "m.pt", strict=False)
    assert report.missing == ("embed.weight", "head.weight")
    assert model.head.weight is model.embed.weight
    assert model.head.weight.std() > 0


def test_constructors_that_look_at_values_are_built_without_weights(tmp_path):
    model = LooksAtValues()
    torch.save(model.state_dict(), tmp_path / "m.pt")
    loaded, _ = fast_load(LooksAtValues, tmp_path / "m.pt")
    assert_same(loaded, model)
    assert loaded.rates == [0.0, 0.5, 1.0]
    assert loaded.twin is loaded.weight
    assert type(nn.Linear(2, 2).weight.data) is torch.Tensor
    assert not nn.Linear(2, 2).weight.is_meta, "registering parameters is not as before"


def test_requires_grad_is_the_models(tmp_path):
    def frozen():
        return nn.Linear(2, 2).requires_grad_(False)

    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "m.pt")
    assert not fast_load(frozen, tmp_path / "m.pt")[0].weight.requires_grad


def test_files_that_are_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at"):
        fast_load(Tied, tmp_path / "none.pt")
    with pytest.raises(FileNotFoundError, match="holds nothing instead of one checkpoint"):
        fast_load(Tied, tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"not a checkpoint" * 50)
    with pytest.raises(ValueError, match="not a checkpoint that torch can read"):
        fast_load(Tied, tmp_path / "bad.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pt")
    with pytest.raises(ValueError, match="holds pickled objects"):
        fast_load(Tied, tmp_path / "pickled.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    with pytest.raises(ValueError, match="holds a Tensor instead of a state_dict"):
        fast_load(Tied, tmp_path / "tensor.pt")
    with pytest.raises(TypeError, match="build must return a module, not int"):
        fast_load(lambda: 3, tmp_path / "tensor.pt")


def test_old_format_is_read_whole(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same(fast_load(Tied, tmp_path / "old.pt")[0], trained)


def test_shards_of_an_index(trained, tmp_path):
    names = list(tensors(trained))
    weight_map = {name: f"part-{number % 2}.bin" for number, name in enumerate(names)}
    for part in set(weight_map.values()):
        torch.save({n: tensors(trained)[n] for n in names if weight_map[n] == part}, tmp_path / part)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same(fast_load(Tied, tmp_path)[0], trained)
    (tmp_path / "part-1.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"names part-1.bin, which .* lacks"):
        fast_load(Tied, tmp_path)


def test_safetensors(trained, tmp_path):
    save_file = pytest.importorskip("safetensors.torch", reason="the safetensors package is not installed").save_file
    state = tensors(trained)
    del state["head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    for mapped in (True, False):
        assert_same(fast_load(Tied, tmp_path, mapped=mapped)[0], trained)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        fast_load(Tied, tmp_path)


def test_safetensors_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("diagnose.kernels._checkpoint_files.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        fast_load(Tied, tmp_path)


def save_distributed(state, folder):
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder)


def test_distributed_checkpoint_in_one_process(trained, tmp_path):
    save_distributed({f"net.{k}": v for k, v in tensors(trained).items()}, tmp_path)
    model, report = fast_load(Tied, tmp_path, prefix="net.")
    assert_same(model, trained)
    assert model.head.weight is model.embed.weight
    assert report.missing == ()
    with pytest.raises(ValueError, match=r"lacks embed.weight, head.weight"):
        fast_load(Tied, tmp_path)
    with pytest.raises(ValueError, match="does not fit the model"):
        fast_load(lambda: Tied(width=4), tmp_path, prefix="net.")

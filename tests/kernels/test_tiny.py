"""Fewer blocks, narrower layers, few samples; and what is not shrunk."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from diagnose.kernels.tiny import short_dataset, tiny_config, tiny_model


class Block(nn.Module):
    def __init__(self, width, inner=8, experts=0):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.experts = nn.ModuleList(Block(width) for _ in range(experts))

    def forward(self, x):
        return x + self.down(self.up(x).relu()) + sum(expert(x) for expert in self.experts)


class Chain(nn.Module):
    def __init__(self, num=5, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(4, **options) for _ in range(num))
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(num))
        self.config = SimpleNamespace(n_layer=num, n_embd=4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return [head(x) for head in self.heads]


def test_the_first_blocks_are_kept_with_their_weights():
    model = Chain()
    small = tiny_model(model, check=lambda made: made(torch.zeros(1, 4)))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    wanted = model.heads[4](model.blocks[1](model.blocks[0](x)))
    assert torch.equal(small.model(x)[4], wanted)
    assert small.changes == ("blocks: 2 of 5 Block", "config.n_layer: 2")
    assert str(small).endswith("; 202 of 430 parameters")
    assert (len(model.blocks), model.config.n_layer) == (5, 5), "the model that was given stays as it was"
    assert small.model.blocks[0].up.weight is not model.blocks[0].up.weight
    assert list(small.model.state_dict())[:2] == ["blocks.0.up.weight", "blocks.0.up.bias"]


def test_what_lies_inside_a_block_stays_whole():
    small = tiny_model(Chain(experts=4), num_blocks=1).model
    assert [len(small.blocks), len(small.blocks[0].experts)] == [1, 4]


def test_blocks_that_differ_are_no_stack():
    first, *others = [Block(4, inner=6), Block(4), Block(4), Block(4)]
    small = tiny_model(nn.Sequential(nn.Identity(), first, *others, nn.Flatten()), num_blocks=1)
    assert [type(m).__name__ for m in small.model] == ["Identity", "Block", "Block", "Flatten"]
    assert [small.model[1].up.out_features, small.model[2].up.out_features] == [6, 8]
    assert small.changes == ("Sequential: 1 of 3 Block",)


def test_blocks_by_name():
    model = nn.ModuleDict({"a": Block(4), "b": Block(4), "c": Block(4)})
    assert list(tiny_model(model).model) == ["a", "b"]


def test_a_transformer_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
    small = tiny_model(model, check=lambda made: made(torch.zeros(1, 3, 8)))
    assert small.changes == ("layers: 2 of 6 TransformerEncoderLayer",)


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)), Chain(2), Block(4)]
)
def test_a_model_without_a_stack(model):
    with pytest.raises(ValueError, match="no stack of more than 2 equal blocks"):
        tiny_model(model)


def test_a_model_that_needs_all_of_its_blocks():
    class Skipping(Chain):
        def forward(self, x):
            return self.blocks[4](x)

    with pytest.raises(ValueError, match=r"does not run with fewer blocks \(blocks: 2 of 5 Block.*IndexError"):
        tiny_model(Skipping(), check=lambda made: made(torch.zeros(1, 4)))
    with pytest.raises(ValueError, match="num_blocks >= 1"):
        tiny_model(Chain(), num_blocks=0)


@dataclass(frozen=True)
class Sizes:
    n_layer: int = 12
    n_head: int = 12
    n_kv_heads: int = 4
    n_embd: int = 768
    vocab_size: int = 50304
    windows: tuple[int, ...] = tuple(range(12))


def test_a_configuration_of_ones_own():
    small = tiny_config(Sizes(), num_layers=3, narrower=4)
    assert small.config == Sizes(3, 3, 1, 192, 50304, (0, 1, 2))
    assert small.changes == (
        "n_layer: 3 instead of 12",
        "windows: 3 entries instead of 12 entries",
        "n_head: 3 instead of 12",
        "n_embd: 192 instead of 768",
        "n_kv_heads: 1 instead of 4",
    )
    assert tiny_config({"depth": 24, "dim": 64}, num_layers=None, narrower=2).config == {"depth": 24, "dim": 32}


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        (Sizes(), {"narrower": 5}, "n_head is 12, which cannot be divided by narrower=5"),
        (Sizes(), {"narrower": 0}, "narrower >= 1"),
        (Sizes(), {"num_layers": 0}, "num_layers and narrower >= 1"),
        ({"layers": 3}, {}, "Nothing in dict would change"),
        (Sizes(n_layer=2), {}, "as small already"),
    ],
)
def test_configurations_that_cannot_be_shrunk(config, options, text):
    with pytest.raises(ValueError, match=text):
        tiny_config(config, **options)


@pytest.mark.slow
def test_models_of_transformers():
    transformers = pytest.importorskip("transformers", reason="the transformers package is not installed")
    gpt2 = tiny_config(transformers.GPT2Config(), narrower=4)
    assert gpt2.changes == ("n_layer: 2 instead of 12", "n_head: 3 instead of 12", "n_embd: 192 instead of 768")
    config = transformers.Qwen2Config(
        vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4,
    )  # fmt: skip
    tokens = torch.arange(6).view(1, 6)
    narrow = tiny_config(config, narrower=2)
    assert len(narrow.config.layer_types) == 2
    made = transformers.Qwen2ForCausalLM(narrow.config)
    assert made(tokens, labels=tokens).logits.shape == (1, 6, 32)
    assert made.model.layers[0].self_attn.q_proj.weight.shape == (32, 32)
    whole = transformers.Qwen2ForCausalLM(config)
    cut = tiny_model(whole, check=lambda made: made(tokens, labels=tokens))
    assert cut.changes[:2] == ("model.layers: 2 of 6 Qwen2DecoderLayer", "config.num_hidden_layers: 2")
    assert cut.model.generate(tokens, max_new_tokens=2, do_sample=False).shape == (1, 8)
    assert whole.config.num_hidden_layers == 6


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(100))


def test_few_samples():
    dataset = TensorDataset(torch.arange(10))
    assert [int(x) for (x,) in short_dataset(dataset, 3)] == [0, 1, 2]
    assert len(short_dataset(dataset, 30)) == 10
    assert list(short_dataset(Numbers(), 3)) == [0, 1, 2]
    assert len(list(DataLoader(short_dataset(Numbers(), 5), batch_size=None))) == 5
    with pytest.raises(ValueError, match="num_samples >= 1"):
        short_dataset(dataset, 0)
    with pytest.raises(TypeError, match="has no length"):
        short_dataset(object(), 3)


def test_workers_share_the_few_samples_of_a_stream(monkeypatch):
    sizes = []
    for worker in range(3):
        info = SimpleNamespace(id=worker, num_workers=3)
        monkeypatch.setattr("diagnose.kernels.tiny.get_worker_info", lambda info=info: info)
        sizes.append(len(list(short_dataset(Numbers(), 5))))
    assert sizes == [2, 2, 1]

"""A small training script as a dictionary of names: what printed code is pasted into, and what comes out of it."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, default_collate

from tests.changes.advice_cases import Printed

Names = dict[str, Any]
GIVEN = "given"
"""The name of the batch that the script trains on."""


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).relu())


class Model(nn.Module):
    """A linear layer and two blocks, of 4 features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for block in self.blocks:
            x = block(x)
        return x


class Rows(Dataset):
    """Eight samples of one tensor each."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return torch.arange(4.0) + 10 * index

    def __len__(self) -> int:
        return 8


class Stream(IterableDataset):
    """The same samples as lines that are parsed one by one."""

    def lines(self) -> Iterator[str]:
        return map(str, range(8))

    def parse(self, line: str) -> torch.Tensor:
        return torch.arange(4.0) + 10 * int(line)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.parse, self.lines())


def script(printed: Printed, side: str, folder: Path) -> Names:
    """Return the names of a script that needs a change, or has it; ``folder`` is where its files are."""
    is_stream = bool(printed.finding.facts.get("iterable"))
    torch.manual_seed(0)
    model, x, y, batch = Model(), torch.randn(2, 4), torch.randn(2, 4), torch.randn(3, 4)
    dataset: Any = Stream() if is_stream else Rows()
    pairs = DataLoader(TensorDataset(torch.randn(4, 4), torch.randn(4, 4)), 2)
    criterion, angle = nn.MSELoss(), torch.rand(4, 2).repeat(1, 2)
    ddp = DistributedDataParallel(model) if "ddp" in getattr(printed.prescription, side) else None
    criterion(model(x), y).backward()  # a step has left gradients
    names: Names = {
        "torch": torch, "nn": nn, "F": functional, "dist": dist, "os": os, "math": math, "time": time,
        "itertools": itertools, "DataLoader": DataLoader, "Dataset": Dataset, "DistributedSampler": DistributedSampler,
        "DistributedDataParallel": without_devices, "Model": Model, "build_model": Model,
        # the training
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "criterion": criterion,
        "loader": pairs, "dataset": dataset, "sampler": range(8), "collate_fn": default_collate,
        "pad": default_collate,
        "x": x, "y": y, "batch": batch, "loss": criterion((ddp or model)(x), y), "device": "cpu",
        "ddp": ddp, "state": model.state_dict(), GIVEN: (x, y),
        "params": list(model.parameters()), "lr": 0.1, "epochs": 1, "batch_size": 2,
        "num_workers": 1, "step": 8000, "every": 50, "max_norm": 1.0,
        "train_step": lambda batch: model(batch).sum().backward(), "run_step": lambda _batch: None,
        "validation_loader": (), "evaluate": lambda _model, *_loader: None,
        "path": folder / "model.pt", "folder": folder / "weights",
        # its ranks
        "rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1,
        # its own work in Python
        "identities": [1, 2],
        "preprocess": list, "postprocess": len, "decode": Path.stat, "next_inputs": [1, 2], "inputs": [[1, 2], [3]],
        "hook": lambda *_: None, "save": lambda _state: None, "fetch": lambda: b"",
        # tensors that a step makes: values to read, attention, keys of a generation, classes, embeddings, masks, ranks
        "value": torch.ones(()), "score": torch.ones(()), "values": [torch.ones(())] * 2, "running_loss": 0.0,
        "output": model(x), "outputs": torch.randn(2, 4), "scores": torch.randn(2, 4), "h": torch.randn(2, 4),
        "q": torch.randn(1, 2, 4, 4), "k": torch.randn(1, 2, 4, 4), "v": torch.randn(1, 2, 4, 4), "scale": 0.5,
        "query": torch.randn(1, 2, 4, 4), "cos": angle.cos(), "sin": angle.sin(), "rotate_half": rotate_half,
        "heads": 2, "width": 4, "max_length": 6, "length": 0, "dtype": torch.float32, "capacity": 2, "end": 0,
        "keys": torch.empty(2, 2, 0, 4), "new_keys": torch.randn(2, 2, 1, 4), "rows": x[:0], "new": x,
        "gate_proj": nn.Linear(4, 3), "up_proj": nn.Linear(4, 3), "weight": torch.rand(4), "linear": nn.Linear(4, 4),
        "eps": 1e-6, "hidden": torch.randn(2, 4), "head": nn.Linear(4, 2), "target": torch.tensor([1, 0]),
        "num_classes": 3, "labels": torch.tensor([0, -100]), "pred": torch.tensor([1, 1]), "n": 2, "shape": (2, 2),
        "ids": torch.tensor([1, 0]), "table": torch.randn(3, 4), "num_rows": 5, "block": model.layer,
        "mask": torch.rand(2, 4) < 0.5, "keep": torch.tensor([True, False]), "out": torch.ones(2, 4), "mine": x,
        "received": [2], "counts": torch.tensor([2]), "distance": torch.rand(4, 4), "num_neighbours": 2,
        "images": torch.randint(0, 255, (1, 3, 4, 4), dtype=torch.uint8), "array": torch.randn(2, 4).double().numpy(),
        "fetched": torch.randn(2, 4), "side": torch.cpu.Stream(),
        "nullcontext": nullcontext, "graph": SimpleNamespace(replay=int), "static_input": x, "static_target": y,
        "whole_step": lambda x, y: criterion(model(x), y), "bottom": model.layer, "captured_batch": batch + 1,
        "texts": ["a b", "a"], "tokenizer": tokenized, "self": SimpleNamespace(training=True),
        # other models
        "policy": model, "teacher": model, "generator": model, "discriminator": Model(), "average": Model(),
        "ema_model": Model(), "gradients": [torch.rand(2)],
        "noise": x, "zeros": torch.zeros(2, 4), "decay": 0.9,
    }  # fmt: skip
    torch.save(model.state_dict(), names["path"])
    return names | parts(printed, side, names, folder)


def next_stage() -> SimpleNamespace:
    """Return what exchanges with the next stage of a pipeline, whose gradients are ones."""
    return SimpleNamespace(
        isend=lambda tensor, dst: SimpleNamespace(wait=lambda: None),
        recv=lambda tensor, src: tensor.fill_(1.0),
    )


def parts(printed: Printed, side: str, names: Names, folder: Path) -> Names:
    """Return what the script of a change has besides, or in another form than the others."""
    x, model, dataset = names["x"], names["model"], names["dataset"]
    rows, pixels = DataLoader(dataset, 2), names["images"].float()
    made: dict[str, Callable[[], Names]] = {
        "balance-ranks": lambda: {"dataset": names["loader"].dataset},
        "begin-together": lambda: {"rank": 1},
        "batch-rollouts": lambda: {"gymnasium": SimpleNamespace(make_vec=environments), "name": "some/environment"},
        "cheaper-sample": lambda: {"rows": [Row(i) for i in range(3)]},
        "cheaper-line": lambda: {"scores": [3, 1, 2, 5, 4]},
        "cumulate-sorted": lambda: {"key": torch.rand(8), "score": torch.randn(8)},
        "matrix-of-distances": lambda: {"x": torch.rand(4, 3), "y": torch.rand(5, 3)},
        "cheaper-form": lambda: {
            "x": {"separable": torch.rand(1, 2, 8, 8), "rows": torch.randint(0, 3, (5, 3))}.get(
                str(printed.finding.facts["kind"]), torch.rand(4, 4) + 4 * torch.eye(4)
            ),
            **{"matrix": torch.eye(4), "row": torch.rand(3), "column": torch.rand(3), "channels": 2, "m": 4},
            **{"lr": 0.1, "factor": 0.01, "order": torch.rand(4).argsort(), "n": 4, "k": 2, "size_1": 3, "size_2": 3},
            **{"rng": np.random.default_rng(0), "a": torch.rand(2, 3), "b": torch.rand(3, 2), "taps": torch.rand(3)},
            **{"index": torch.tensor([0, 2]), "num_classes": 3},
            **{"MultivariateNormal": torch.distributions.MultivariateNormal, "F": functional},
            **{"mean": torch.zeros(4), "lower": torch.eye(4), "target": torch.tensor([0, 2])},
            **{"log_probabilities": torch.rand(2, 3).log_softmax(-1)},
        },
        "samples-of-arrays": lambda: {"np": np, "sample": {"flow": [0.5, 1.0]}},
        "checkpoint-less": lambda: {"checkpoint": checkpoint},
        "channels-last": lambda: {
            "Model": Convolution,
            "loader": [(pixels, None)],
            GIVEN: (pixels, torch.zeros(1, 4, 4, 4)),
        },
        "compile-larger": lambda: {"step": lambda: None},
        "compute-first": lambda: {
            "condition": torch.randn(2, 4),
            "x": torch.randn(2, 4, 3, 3),
            "self": SimpleNamespace(project=nn.Conv2d(4, 4, 1)),
        },
        "compile-graphs": lambda: {"LLM": SimpleNamespace, "name": "some/model"},
        "emit-type": lambda: {"dequantize": dequantized, "packed": torch.randn(4, 4), "x": x.half()},
        "fill-the-device": lambda: {"inputs": [x] * 2, "weights": [torch.randn(4, 3)] * 2},
        "keep-diagonal": lambda: {
            **{name: getattr(torch.distributions, name) for name in ("MultivariateNormal", "Independent", "Normal")},
            **{"scale": torch.rand(2), "mean": torch.zeros(2), "variance": torch.ones(2)},
        },
        "leave-out-call": lambda: {
            "bank": functional.normalize(torch.randn(3, 4), dim=-1),
            "embedding": nn.Embedding(3, 4),
            "num_nodes": 3,
        },
        "multiply-blocks": lambda: {
            **{"height": 4, "width": 4, "modes": 2},
            **{"x": torch.randn(4, 4), "weight": torch.randn(2, 2)},
        },
        "remove-hooks": lambda: {"layers": [model.layer]},
        "search-once": lambda: {
            "edges": SimpleNamespace(target=torch.tensor([2, 0, 1, 0])),
            "wanted": torch.tensor([True, False, False]),
            "nodes": torch.tensor([0]),
        },
        "select-first": lambda: {
            "self": SimpleNamespace(head=nn.Linear(4, 2), norm=nn.Identity()),
            "hidden": torch.randn(2, 3, 4),
        },
        "find-batch-size": lambda: {
            "dataset": names["loader"].dataset if printed.program.trains is not False else dataset
        },
        "fused-attention": lambda: {"mask": torch.ones(4, 4).tril(), "AutoModel": library(), "name": "some/model"},
        "keep-iterator": lambda: {"loader": EndsFirst() if side == "after" else rows},
        "load-in-workers": lambda: {"pipe": lambda inputs, num_workers=0: [len(each) for each in inputs]},
        "align-pauses": lambda: {"path": folder / "other.pt"},
        "device-backend": lambda: {"dist": SimpleNamespace(init_process_group=lambda name: dist.Backend(name) or None)},
        "foreach-optimizer": own_optimizer,
        "more-workers": lambda: {"loader": DataLoader(dataset, 2, num_workers=1)},
        "fast-fft-length": lambda: {"x": torch.randn(2, 64), "w": torch.randn(2, 64), "layers": torch.nn.Identity()},
        "single-precision": lambda: {"np": np},
        **dict.fromkeys(
            ("pipeline-forwards", "cut-into-micro-batches"), lambda: {"dist": next_stage(), "num_micro": 3}
        ),
        "one-grad": lambda: {"field": torch.mul, **{name: torch.rand(2, requires_grad=True) for name in "xt"}},
        "pack-samples": lambda: images(folder / "images"),
        "prefetch-to-device": lambda: {"loader": rows},
        "schedule-gc": lambda: {"loader": range(100)},
        "skip-zero-term": lambda: {"coefficient": 0.5, "penalty": torch.norm},
        "static-graph-inputs": lambda: {
            "inputs": [torch.empty_like(each) for each in (*model.parameters(), names["batch"])]
        },
    }
    return made.get(printed.prescription.id, dict)()


class Row(NamedTuple):
    """One row of a table."""

    identity: int


class Convolution(nn.Conv2d):
    """A model of images."""

    def __init__(self) -> None:
        super().__init__(3, 4, 1)


class EndsFirst:
    """A loader whose first epoch is over already."""

    epochs = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epochs += 1
        return iter([torch.ones(2, 4)][: self.epochs - 1])


def environments(_name: str, num_envs: int, **_options: Any) -> SimpleNamespace:
    """Return what gymnasium makes: many environments in one object."""
    seen = torch.zeros(num_envs, 4).numpy()
    return SimpleNamespace(reset=lambda: (seen, {}), step=lambda actions: (seen + actions.mean(), seen[:, 0], {}))


def tokenized(_texts: list[str], padding: str, **_options: Any) -> Names:
    """Return two texts as numbers, padded to the longest of them or to four."""
    length = {"longest": 2, "max_length": 4}[padding]
    return {"attention_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])[:, :length], "labels": torch.tensor([0, 1])}


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Return the two halves of the features in each other's place, the first one's sign changed."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def dequantized(packed: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return weights of a library in a type that it is given."""
    return packed.to(dtype)


def own_optimizer() -> Names:
    """Return the names within the step() of an optimizer of the script's own."""
    weight = torch.ones(2)
    weight.grad = torch.ones(2)
    state = {weight: {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}}
    group = {"params": [weight]}
    return {"self": SimpleNamespace(state=state), "group": group, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1}


def library() -> SimpleNamespace:
    """Return a library that makes models by name, since theirs come over a network."""
    return SimpleNamespace(from_pretrained=lambda _name, **_options: Model())


def images(folder: Path) -> Names:
    """Write a folder with two files of a class, and return no further names."""
    (folder / "cat").mkdir(parents=True, exist_ok=True)
    for name in ("0.jpg", "1.jpg"):
        (folder / "cat" / name).write_bytes(b"\xff\xd8\xff\xd9")
    return {}


def without_devices(model: nn.Module, *, device_ids: object = None, **options: Any) -> DistributedDataParallel:
    """Return the wrapped model on the CPU, whatever device the text names."""
    return DistributedDataParallel(model, **options)

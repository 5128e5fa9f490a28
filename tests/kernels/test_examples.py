"""Every example on a remedy's page runs as it stands, on a small model on the CPU."""

import ast
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from diagnose.kernels import _OLD_NAMES as OLD_NAMES

FOLDER = Path(__file__).parents[2] / "kernels"
MODULES = sorted(p for p in FOLDER.glob("*.py") if not p.name.startswith("_") and p.stem not in OLD_NAMES)
OTHERS = {"patching"}  # its own tests run its example
NEEDS = {"web_shards": ("webdataset",)}


class Augmented(Dataset):
    def __init__(self, files, decode):
        self.files, self.decode = files, decode

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.decode(self.files[index]) + torch.rand(4), index % 8


def decode(file):
    return torch.full((4,), float(Path(file).stem))


def world(tmp_path):
    """Return the names that examples take for granted: those of an ordinary training script."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()
    dataset = TensorDataset(torch.randn(64, 4), torch.arange(64) % 8)
    loader = DataLoader(dataset, batch_size=16)

    def train_step(*batch):
        x, y = batch if len(batch) == 2 else batch[0]
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return {
        "torch": torch,
        "nn": nn,
        "DataLoader": DataLoader,
        "Augmented": Augmented,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "criterion": criterion,
        "dataset": dataset,
        "loader": loader,
        "train_step": train_step,
        "stream": list(zip(*dataset.tensors, strict=True)),
        "files": [f"{number}.bin" for number in range(8)],
        "decode": decode,
        "epochs": 2,
        "log": lambda *_: None,
        "folder": tmp_path,
        "np": np,
    }


def example(path):
    page = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    text = "\n".join(line[4:] for line in page.split("Example::")[1].strip("\n").splitlines())
    return text.replace('"cuda"', '"cpu"')


@pytest.mark.parametrize("path", [p for p in MODULES if p.stem not in OTHERS], ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset's open files
def test_example_runs(path, tmp_path, write_shards, monkeypatch):
    for name in ("dropout", "scaled_dot_product_attention"):  # which an example replaces: torch's are back afterwards
        monkeypatch.setattr(nn.functional, name, getattr(nn.functional, name))
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package, reason=f"the {package} package is not installed")
    names = world(tmp_path) | {"shards": write_shards(tmp_path, [6, 6])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pinning without a device
        exec(compile(example(path), str(path), "exec"), names)

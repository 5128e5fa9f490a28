"""Click-through model on display-ad logs: embeddings, pairwise dots, MLP on top."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

FIELDS = {
    "site": 4000, "app": 9000, "device_model": 7000, "device_ip": 160000, "user": 220000,
    "ad": 30000, "campaign": 2500, "banner_pos": 8, "conn_type": 5, "os": 12, "hour": 168, "geo": 3500,
}
N_DENSE = 10


def write_logs(folder, rows, seed):
    rng = np.random.default_rng(seed)
    cats = np.empty((rows, len(FIELDS)), dtype=np.int32)
    for k, card in enumerate(FIELDS.values()):
        u = rng.random(rows)
        cats[:, k] = np.minimum((card * u ** 2.0).astype(np.int64), card - 1)
    dense = rng.lognormal(0.0, 1.0, size=(rows, N_DENSE)).astype(np.float32)
    score = 0.4 * np.sin(cats[:, 5] * 0.37) + 0.5 * np.cos(cats[:, 0]) + 0.3 * np.log1p(dense[:, 0]) - 1.6
    clicks = rng.random(rows) < 1 / (1 + np.exp(-score))
    np.save(os.path.join(folder, "cats.npy"), cats)
    np.save(os.path.join(folder, "dense.npy"), dense)
    np.save(os.path.join(folder, "clicks.npy"), clicks.astype(np.float32))


class LogReader:
    def __init__(self, folder):
        self.cats = np.load(os.path.join(folder, "cats.npy"))
        self.dense = np.log1p(np.load(os.path.join(folder, "dense.npy")))
        self.clicks = np.load(os.path.join(folder, "clicks.npy"))

    def epoch(self, size, rng):
        order = rng.permutation(len(self.clicks))
        for lo in range(0, len(order) - size + 1, size):
            rows = order[lo:lo + size]
            yield (torch.from_numpy(self.cats[rows]).long(), torch.from_numpy(self.dense[rows]),
                   torch.from_numpy(self.clicks[rows]))

    def forever(self, size, seed):
        rng = np.random.default_rng(seed)
        while True:
            yield from self.epoch(size, rng)


def mlp(sizes, last_activation=True):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if last_activation or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class FieldEmbeddings(nn.Module):
    def __init__(self, cards, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(card, dim) for card in cards)
        for table in self.tables:
            nn.init.uniform_(table.weight, -dim ** -0.5, dim ** -0.5)

    def forward(self, cats):
        return [table(column) for table, column in zip(self.tables, cats.unbind(1))]


class DotInteraction(nn.Module):
    def __init__(self, n):
        super().__init__()
        rows, cols = torch.tril_indices(n, n, offset=-1)
        self.register_buffer("flat", rows * n + cols, persistent=False)
        self.width = len(rows)

    def forward(self, vectors):
        z = torch.stack(vectors, 1)
        return torch.bmm(z, z.transpose(1, 2)).flatten(1)[:, self.flat]


class ClickModel(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.bottom = mlp([N_DENSE, 256, 128, dim])
        self.fields = FieldEmbeddings(FIELDS.values(), dim)
        self.cross = DotInteraction(len(FIELDS) + 1)
        self.top = mlp([dim + self.cross.width, 512, 256, 128, 1], last_activation=False)

    def forward(self, cats, dense):
        d = self.bottom(dense)
        crossed = self.cross([d] + self.fields(cats))
        return self.top(torch.cat([d, crossed], dim=1)).squeeze(1)


class Session:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        with tempfile.TemporaryDirectory() as folder:
            write_logs(folder, args.rows, args.seed)
            self.reader = LogReader(folder)
        self.args = args
        self.model = ClickModel()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=args.lr, initial_accumulator_value=0.1)
        self.base_rate = float(self.reader.clicks.mean())

    def normalised_entropy(self, nll):
        p = self.base_rate
        return nll / -(p * np.log(p) + (1 - p) * np.log(1 - p))

    def run(self):
        seen, nll = 0, 0.0
        batches = self.reader.forever(self.args.batch, self.args.seed + 1)
        for step in range(1, self.args.steps + 1):
            cats, dense, clicks = next(batches)
            loss = F.binary_cross_entropy_with_logits(self.model(cats, dense), clicks)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            seen += 1
            nll += loss.item()
            if step % self.args.every == 0:
                print(f"step {step} logloss {nll / seen:.5f} NE {self.normalised_entropy(nll / seen):.5f}")
                seen, nll = 0, 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    Session(parser.parse_args()).run()

"""Protein fragment classifier (binding class) on fragments of very different length."""
import argparse

import numpy as np
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
torch._dynamo.config.recompile_limit = 256
torch._dynamo.config.accumulated_recompile_limit = 1024


class Fragments(Dataset):
    def __init__(self, n, classes, seed):
        rng = np.random.default_rng(seed)
        motifs = rng.integers(0, 20, (classes, 6))
        self.rows = []
        for _ in range(n):
            length = int(np.clip(rng.lognormal(4.4, 0.35), 24, 200))
            seq = rng.integers(0, 20, length)
            c = int(rng.integers(classes))
            for _ in range(3):
                at = rng.integers(0, length - 6)
                seq[at : at + 6] = motifs[c]
            self.rows.append((torch.from_numpy(seq + 1), c))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class SimilarLength(Sampler):
    """Batches of neighbours in length order, visited in random order."""

    def __init__(self, data, batch, seed):
        by_len = sorted(range(len(data)), key=lambda i: len(data.rows[i][0]))
        self.groups = [by_len[i : i + batch] for i in range(0, len(by_len) - batch + 1, batch)]
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return len(self.groups)

    def __iter__(self):
        for g in torch.randperm(len(self.groups), generator=self.gen).tolist():
            yield self.groups[g]


def collate(rows):
    seqs, labels = zip(*rows)
    ids = pad_sequence(seqs, batch_first=True)
    return F.pad(ids, (0, -ids.shape[1] % 16)), torch.tensor(labels)


class FragmentNet(nn.Module):
    def __init__(self, classes, width=128):
        super().__init__()
        self.emb = nn.Embedding(len(ALPHABET) + 1, width, padding_idx=0)
        self.c1 = nn.Conv1d(width, width, 5, padding=2)
        self.c2 = nn.Conv1d(width, width, 5, padding=2)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.score = nn.Linear(width, 4)
        self.out = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, seq):
        keep = (seq > 0).unsqueeze(-1)
        h = self.emb(seq)
        h = h + F.gelu(self.c1(self.n1(h).transpose(1, 2)).transpose(1, 2))
        h = h + F.gelu(self.c2(self.n2(h * keep).transpose(1, 2)).transpose(1, 2))
        att = self.score(h).masked_fill(~keep, -1e4).softmax(1)
        pooled = torch.einsum("blh,bld->bhd", att, h).flatten(1)
        return self.out(pooled)


def forever(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=80)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(60)
    data = Fragments(6000, args.classes, 60)
    loader = DataLoader(data, batch_sampler=SimilarLength(data, args.batch, 61), collate_fn=collate)
    model = FragmentNet(args.classes)
    net = torch.compile(model, backend="aot_eager", dynamic=False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    for step, (seq, label) in zip(range(1, args.steps + 1), forever(loader)):
        logits = net(seq)
        loss = F.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0:
            acc = (logits.argmax(1) == label).float().mean().item()
            print(f"step {step:4d} len {seq.shape[1]:3d} loss {loss.item():.5f} acc {acc:.3f}")


if __name__ == "__main__":
    main()

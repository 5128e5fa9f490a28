"""Digit-string recognition with a convolutional front end, bidirectional GRU and CTC."""
import argparse
import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

MELS, DIGITS = 40, 10


class DigitStrings(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        proto = rng.normal(0, 1, (DIGITS, MELS, 3))
        self.items = []
        for _ in range(n):
            digits = rng.integers(0, DIGITS, rng.integers(3, 8))
            parts = [rng.normal(0, 0.1, (rng.integers(6, 14), MELS))]
            for d in digits:
                dur = rng.integers(14, 30)
                w = np.stack([np.interp(np.linspace(0, 2, dur), [0, 1, 2], proto[d, m]) for m in range(MELS)], 1)
                parts += [w * rng.uniform(0.8, 1.2), rng.normal(0, 0.1, (rng.integers(2, 8), MELS))]
            x = np.concatenate(parts) + rng.normal(0, 0.3, (sum(map(len, parts)), MELS))
            self.items.append((torch.from_numpy(x.astype(np.float32)), torch.from_numpy(digits + 1)))
        self.lengths = [len(x) for x, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class BucketBatches(Sampler):
    """Shuffles batches of neighbouring lengths."""

    def __init__(self, lengths, batch, seed):
        self.order = np.argsort(lengths, kind="stable")
        self.batch, self.rng = batch, np.random.default_rng(seed)
        self.n = len(lengths) // batch

    def __len__(self):
        return self.n

    def __iter__(self):
        shift = int(self.rng.integers(0, len(self.order) - self.n * self.batch + 1))
        for b in self.rng.permutation(self.n):
            yield self.order[shift + b * self.batch:shift + (b + 1) * self.batch].tolist()


def pad_batch(items):
    xs, ys = zip(*items)
    xl, yl = torch.tensor([len(x) for x in xs]), torch.tensor([len(y) for y in ys])
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), xl, torch.cat(ys), yl


class Recogniser(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(MELS, hidden, 5, stride=2, padding=2), nn.ReLU(),
                                   nn.Conv1d(hidden, hidden, 3, padding=1), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, DIGITS + 1)

    def forward(self, x, lengths):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h).log_softmax(2), (lengths + 1) // 2


def collapse(path):
    return [k for k, _ in itertools.groupby(path) if k]


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


def error_rate(logp, lengths, target, target_lengths):
    best, err = logp.argmax(2), 0
    for p, n, y in zip(best, lengths.tolist(), target.split(target_lengths.tolist())):
        err += edit_distance(collapse(p[:n].tolist()), y.tolist())
    return err / len(target)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    data = DigitStrings(480, args.seed)
    loader = DataLoader(data, batch_sampler=BucketBatches(data.lengths, args.batch, args.seed), collate_fn=pad_batch)
    model = Recogniser()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    stream = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, (x, xl, y, yl) in enumerate(itertools.islice(stream, args.steps), 1):
        logp, n = model(x, xl)
        loss = F.ctc_loss(logp.transpose(0, 1), y, n, yl, zero_infinity=True)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            print(f"step {step} ctc {loss.item():.4f} DER {error_rate(logp.detach(), n, y, yl):.3f}")


if __name__ == "__main__":
    main()

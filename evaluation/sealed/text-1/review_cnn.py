"""Review classifier on pretrained word vectors: multi-width CNN, attention pooling, averaged weights."""
import argparse
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def pretrained_vectors(vocab, dim, rng):
    centres = rng.standard_normal((64, dim), dtype=np.float32)
    vectors = 0.5 * centres[rng.integers(0, 64, vocab)] + 0.4 * rng.standard_normal((vocab, dim), dtype=np.float32)
    vectors[0] = 0.0
    return torch.tensor(vectors, dtype=torch.float32)


def reviews(n, length, vocab, classes, rng):
    ids = np.minimum(rng.zipf(1.2, size=(n, length)), vocab - 1)
    labels = rng.integers(0, classes, n)
    cue_at = rng.integers(0, length, size=(n, 6))
    cues = 1000 + labels[:, None] * 40 + rng.integers(0, 40, size=(n, 6))
    np.put_along_axis(ids, cue_at, cues, axis=1)
    keep = rng.integers(length // 2, length + 1, n)
    ids[np.arange(length)[None, :] >= keep[:, None]] = 0
    return TensorDataset(torch.from_numpy(ids), torch.from_numpy(labels))


class WidthBank(nn.Module):
    def __init__(self, dim, filters, widths):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(dim, filters, w, padding=w // 2) for w in widths)

    def forward(self, x):
        x = x.transpose(1, 2)
        return torch.cat([F.relu(conv(x)) for conv in self.convs], dim=1).transpose(1, 2)


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.key = nn.Linear(dim, 64)
        self.query = nn.Linear(64, 1, bias=False)

    def forward(self, states, mask):
        score = self.query(torch.tanh(self.key(states))).squeeze(-1)
        share = score.masked_fill(~mask, -1e4).softmax(-1)
        return torch.einsum("bt,btd->bd", share, states)


class ReviewNet(nn.Module):
    def __init__(self, vectors, classes, filters=64, widths=(3, 5)):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(vectors, freeze=True, padding_idx=0)
        self.adapt = nn.Linear(vectors.shape[1], 96)
        self.bank = WidthBank(96, filters, widths)
        self.pool = AttentionPool(filters * len(widths))
        self.norm = nn.BatchNorm1d(filters * len(widths))
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(filters * len(widths), classes)

    def forward(self, ids):
        x = torch.tanh(self.adapt(self.words(ids)))
        pooled = self.pool(self.bank(x), ids > 0)
        return self.out(self.drop(self.norm(pooled)))


class AveragedModel:
    """Exponential average of a network, used for every evaluation."""

    def __init__(self, net, decay):
        self.net = copy.deepcopy(net).eval()
        for p in self.net.parameters():
            p.requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, source):
        self.updates += 1
        rate = 1.0 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mean, value in zip(self.net.state_dict().values(), source.state_dict().values()):
            if mean.dtype.is_floating_point:
                mean.lerp_(value, rate)
            else:
                mean.copy_(value)


@torch.no_grad()
def accuracy(net, dataset):
    ids, labels = dataset.tensors
    guess = torch.cat([net(chunk).argmax(-1) for chunk in ids.split(64)])
    return (guess == labels).float().mean().item()


def repeat(loader):
    while True:
        for batch in loader:
            yield batch


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--length", type=int, default=100)
    ap.add_argument("--vocab", type=int, default=150000)
    ap.add_argument("--dim", type=int, default=200)
    ap.add_argument("--classes", type=int, default=5)
    ap.add_argument("--decay", type=float, default=0.995)
    ap.add_argument("--seed", type=int, default=29)
    args = ap.parse_args(argv)

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    vectors = pretrained_vectors(args.vocab, args.dim, rng)
    train = reviews(6000, args.length, args.vocab, args.classes, rng)
    dev = reviews(192, args.length, args.vocab, args.classes, rng)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True, drop_last=True)

    net = ReviewNet(vectors, args.classes)
    averaged = AveragedModel(net, args.decay)
    trainable = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=2e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=args.steps + 1, pct_start=0.2)

    recent = []
    for step, (ids, labels) in zip(range(1, args.steps + 1), repeat(loader)):
        loss = F.cross_entropy(net(ids), labels, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 3.0)
        opt.step()
        sched.step()
        averaged.update(net)
        recent.append(loss.item())
        if step % 10 == 0:
            print(f"{step:5d}  loss {sum(recent) / len(recent):.5f}")
            recent.clear()
        if step % 30 == 0:
            print(f"{step:5d}  dev accuracy (averaged) {accuracy(averaged.net, dev):.4f}")


if __name__ == "__main__":
    main()

"""Fine-tune a text encoder with layerwise sampling: a few blocks are trained at a time."""
import argparse
import random

import numpy as np
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader, RandomSampler

torch._dynamo.config.recompile_limit = 48


class TicketCorpus(Dataset):
    def __init__(self, n, vocab, length, classes, seed):
        rng = np.random.default_rng(seed)
        prior = rng.dirichlet(np.full(vocab, 0.05), size=classes)
        self.labels = rng.integers(0, classes, n)
        self.tokens = np.stack([rng.choice(vocab, size=length, p=prior[c]) for c in self.labels])
        noise = rng.random(self.tokens.shape) < 0.6
        self.tokens[noise] = rng.integers(0, vocab, noise.sum())

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.tokens[i]), int(self.labels[i])


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.ln_a = nn.LayerNorm(dim)
        self.ln_b = nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.gate, self.down = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def heads_of(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        y = self.ln_a(x)
        att = F.scaled_dot_product_attention(self.heads_of(self.q(y)), self.heads_of(self.k(y)), self.heads_of(self.v(y)))
        x = x + self.o(att.transpose(1, 2).flatten(2))
        y = self.ln_b(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TextEncoder(nn.Module):
    def __init__(self, vocab, length, dim, depth, heads, hidden):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, hidden) for _ in range(depth))
        self.out_norm = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.out_norm(x).mean(1)


class Classifier(nn.Module):
    def __init__(self, encoder, dim, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.head(self.encoder(ids))


class ActiveLayers:
    """Keeps `k` randomly chosen blocks trainable; draws again every `period` updates."""

    def __init__(self, blocks, k, period, seed):
        self.blocks, self.k, self.period = blocks, k, period
        self.rng = random.Random(seed)
        self.current = ()

    def update(self, step):
        if step % self.period:
            return False
        self.current = tuple(sorted(self.rng.sample(range(len(self.blocks)), self.k)))
        for i, blk in enumerate(self.blocks):
            blk.requires_grad_(i in self.current)
        return True


def build(args):
    encoder = TextEncoder(args.vocab, args.length, args.dim, args.depth, args.heads, args.hidden)
    encoder.tok.weight.requires_grad_(False)
    encoder.pos.requires_grad_(False)
    model = Classifier(encoder, args.dim, args.classes)
    model.compile(backend=args.backend)
    return model


def accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--vocab", type=int, default=3000)
    ap.add_argument("--length", type=int, default=64)
    ap.add_argument("--dim", type=int, default=176)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--hidden", type=int, default=352)
    ap.add_argument("--classes", type=int, default=12)
    ap.add_argument("--active", type=int, default=2)
    ap.add_argument("--period", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--backend", default="eager")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    data = TicketCorpus(4000, args.vocab, args.length, args.classes, args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    sampler = RandomSampler(data, replacement=True, num_samples=args.steps * args.batch, generator=gen)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    model = build(args)
    active = ActiveLayers(model.encoder.blocks, args.active, args.period, args.seed)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02)

    seen, hits = 0, 0.0
    for step, (ids, y) in enumerate(loader):
        active.update(step)
        logits = model(ids)
        loss = F.cross_entropy(logits, y, label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        hits += accuracy(logits.detach(), y)
        seen += 1
        if seen == 10:
            print(f"step {step + 1:4d} loss {loss.item():.6f} acc {float(hits) / seen:.3f} blocks {active.current}", flush=True)
            seen, hits = 0, 0.0


if __name__ == "__main__":
    main()

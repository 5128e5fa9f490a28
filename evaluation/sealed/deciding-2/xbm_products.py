"""Product retrieval with a cross-batch memory: each step scores the batch against a random
slice of recent embeddings."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class CatalogueViews:
    """Two noisy attribute views per product; products cluster in families."""

    def __init__(self, n, d, seed):
        g = torch.Generator().manual_seed(seed)
        family = torch.randn(400, d, generator=g)
        self.core = family[torch.randint(400, (n,), generator=g)] + torch.randn(n, d, generator=g)
        self.g = g

    def batch(self, size):
        ids = torch.randperm(20000, generator=self.g)[:size] % len(self.core)
        core = self.core[ids]
        a = core + 0.6 * torch.randn(core.shape, generator=self.g)
        b = core + 0.6 * torch.randn(core.shape, generator=self.g)
        return a, b, ids


class Tower(nn.Module):
    def __init__(self, d_in, d_out, width=576):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.mid = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, d_out))

    def forward(self, x):
        h = self.inp(x)
        h = h + self.mid(h)
        return F.normalize(self.out(h), dim=-1)


class MemoryMatcher(nn.Module):
    def __init__(self, d_in, dim, slots, temperature):
        super().__init__()
        self.query, self.doc = Tower(d_in, dim), Tower(d_in, dim)
        self.register_buffer("keys", F.normalize(torch.randn(slots, dim), dim=-1))
        self.register_buffer("owner", torch.full((slots,), -1))
        self.temperature = temperature

    def forward(self, a, b, ids, slot_write, slot_read):
        q, d = self.query(a), self.doc(b)
        past = self.keys[slot_read]
        same = ids.unsqueeze(1) == self.owner[slot_read].unsqueeze(0)
        near = q @ d.t() / self.temperature
        far = (q @ past.t() / self.temperature).masked_fill(same, -1e4)
        logits = torch.cat([near, far], 1)
        loss = F.cross_entropy(logits, torch.arange(len(q)))
        self.keys[slot_write] = d.detach()
        self.owner[slot_write] = ids
        return loss, near


class Pointer:
    def __init__(self, slots, gen):
        self.slots, self.at, self.gen = slots, 0, gen

    def write(self, n):
        idx = (self.at + torch.arange(n)) % self.slots
        self.at = (self.at + n) % self.slots
        return idx

    def read(self, n):
        return torch.randint(self.slots, (n,), generator=self.gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--slots", type=int, default=60000)
    ap.add_argument("--read", type=int, default=2048)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--temperature", type=float, default=0.07)
    args = ap.parse_args()
    torch.manual_seed(50)
    views = CatalogueViews(20000, 96, 51)
    model = MemoryMatcher(96, args.dim, args.slots, args.temperature)
    forward = torch.compile(model, backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    pointer = Pointer(args.slots, torch.Generator().manual_seed(52))
    hits, seen = 0, 0
    for step in range(1, args.steps + 1):
        a, b, ids = views.batch(args.batch)
        loss, near = forward(a, b, ids, pointer.write(args.batch), pointer.read(args.read))
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (near.argmax(1) == torch.arange(args.batch)).sum().item()
        seen += args.batch
        if step % 10 == 0:
            print(f"{step:4d} nce {loss.item():.5f} in-batch r@1 {hits / seen:.4f}")
            hits = seen = 0


if __name__ == "__main__":
    main()

"""Momentum-contrast pretraining of a small patch transformer on synthetic shape images."""
import argparse
import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def draw_shapes(n, size, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size]
    imgs = np.empty((n, 3, size, size), dtype=np.float32)
    kinds = rng.integers(0, 4, size=n)
    for i, kind in enumerate(kinds):
        cy, cx = rng.uniform(0.35 * size, 0.65 * size, size=2)
        r = rng.uniform(0.15, 0.3) * size
        dy, dx = np.abs(yy - cy), np.abs(xx - cx)
        shape = (dy ** 2 + dx ** 2 < r ** 2, np.maximum(dy, dx) < r, dy + dx < r,
                 (dy < r / 3) | (dx < r / 3))[kind]
        color, back = rng.random((3, 1, 1)), rng.random((3, 1, 1)) * 0.5
        imgs[i] = np.where(shape[None], color, back)
    return torch.from_numpy(imgs), torch.from_numpy(kinds)


def augment(x):
    b, _, h, w = x.shape
    flip = torch.rand(b) < 0.5
    x = torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x)
    gain = torch.empty(b, 3, 1, 1).uniform_(0.6, 1.4)
    x = x * gain + torch.randn(b, 1, 1, 1) * 0.1
    dy, dx = torch.randint(-4, 5, (2,)).tolist()
    return torch.roll(x, shifts=(dy, dx), dims=(2, 3))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.relu(self.up(self.n2(x))))


class PatchEncoder(nn.Module):
    def __init__(self, size=40, patch=8, dim=128, depth=3, heads=4, out=64):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, x):
        tokens = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        h = self.norm(self.layers(self.embed(tokens) + self.pos)).mean(dim=1)
        return F.normalize(self.proj(h), dim=1)


class MoCo(nn.Module):
    def __init__(self, queue_size=2048, dim=64, momentum=0.99, tau=0.15):
        super().__init__()
        self.query = PatchEncoder(out=dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum, self.tau = momentum, tau
        self.register_buffer("queue", F.normalize(torch.randn(queue_size, dim), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def update_key(self):
        for pk, pq in zip(self.key.parameters(), self.query.parameters()):
            pk.mul_(self.momentum).add_(pq, alpha=1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, k):
        self.queue[self.ptr:self.ptr + len(k)] = k
        self.ptr = (self.ptr + len(k)) % len(self.queue)

    def forward(self, view_a, view_b):
        q = self.query(view_a)
        with torch.no_grad():
            k = self.key(view_b)
        pos = (q * k).sum(dim=1, keepdim=True)
        neg = q @ self.queue.clone().t()
        logits = torch.cat([pos, neg], dim=1) / self.tau
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        self.enqueue(k)
        return loss, (logits.argmax(dim=1) == 0).float().mean()


@torch.no_grad()
def knn_probe(model, imgs, kinds, n_bank=512):
    feats = torch.cat([model.query(c) for c in imgs[:n_bank + 256].split(128)])
    nearest = (feats[n_bank:] @ feats[:n_bank].t()).argmax(dim=1)
    return (kinds[:n_bank][nearest] == kinds[n_bank:n_bank + 256]).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()
    torch.manual_seed(41)
    imgs, kinds = draw_shapes(3072, 40, seed=41)
    model = MoCo()
    opt = torch.optim.SGD(model.query.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, fused=True)
    step, t0, meter = 0, time.time(), []
    for epoch in range(args.epochs):
        for idx in torch.randperm(len(imgs)).split(args.batch_size):
            x = imgs[idx]
            loss, acc = model(augment(x), augment(x))
            opt.zero_grad()
            loss.backward()
            opt.step()
            model.update_key()
            step += 1
            meter.append((loss.item(), acc.item()))
            if step % 20 == 0:
                l, a = np.mean(meter[-20:], axis=0)
                print(f"epoch {epoch} step {step} loss {l:.4f} top1 {a:.3f} {(time.time() - t0) / step * 1e3:.0f} ms", flush=True)
        print(f"epoch {epoch} knn {knn_probe(model, imgs, kinds):.3f}", flush=True)


if __name__ == "__main__":
    main()

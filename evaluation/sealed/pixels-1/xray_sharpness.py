"""Chest film triage with an all-MLP image model, trained with sharpness-aware minimisation."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FINDINGS = ["effusion", "nodule", "cardiomegaly", "pneumothorax"]


def films(n, size, rng):
    yy, xx = np.mgrid[-1:1:size * 1j, -1:1:size * 1j].astype(np.float32)
    x = np.empty((n, size, size), np.float32)
    y = (rng.random((n, len(FINDINGS))) < 0.3).astype(np.float32)
    for i in range(n):
        lungs = np.exp(-((np.abs(xx) - 0.45) / 0.28) ** 4 - (yy / 0.75) ** 4)
        img = 0.8 - 0.5 * lungs + 0.05 * np.cos(18 * yy)
        heart = 0.2 + 0.12 * y[i, 2]
        img += 0.3 * np.exp(-((xx - 0.1) ** 2 + (yy - 0.25) ** 2) / heart ** 2)
        if y[i, 0]:
            img += 0.35 * (yy > 0.5) * lungs
        if y[i, 1]:
            cx, cy = rng.uniform(-0.6, 0.6), rng.uniform(-0.5, 0.5)
            img += 0.4 * np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 0.004)
        if y[i, 3]:
            img -= 0.25 * (xx > 0.6) * lungs
        x[i] = img + 0.05 * rng.standard_normal((size, size))
    return torch.from_numpy(x), torch.from_numpy(y)


class FilmStore:
    def __init__(self, n, size, crop, seed):
        rng = np.random.default_rng(seed)
        self.x, self.y = films(n, size, rng)
        self.crop, self.gen = crop, torch.Generator().manual_seed(seed)

    def sample(self, k):
        g, room = self.gen, self.x.shape[-1] - self.crop + 1
        pick = torch.randint(len(self.x), (k,), generator=g).tolist()
        at = torch.randint(room, (k, 2), generator=g).tolist()
        x = torch.stack([self.x[i, r:r + self.crop, c:c + self.crop] for i, (r, c) in zip(pick, at)])
        x = x * (0.85 + 0.3 * torch.rand(k, 1, 1, generator=g))
        return ((x - 0.6) / 0.25).unsqueeze(1), self.y[pick]


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm_t, self.norm_c = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_in, self.token_out = nn.Linear(tokens, tokens * 2), nn.Linear(tokens * 2, tokens)
        self.chan = nn.Sequential(nn.Linear(dim, dim * 3), nn.GELU(), nn.Linear(dim * 3, dim))

    def forward(self, x):
        y = self.norm_t(x).transpose(1, 2)
        x = x + self.token_out(F.gelu(self.token_in(y))).transpose(1, 2)
        return x + self.chan(self.norm_c(x))


class FilmMixer(nn.Module):
    def __init__(self, crop, patch=16, dim=160, depth=3):
        super().__init__()
        tokens = (crop // patch) ** 2
        self.patches = nn.Conv2d(1, dim, patch, stride=patch)
        self.layers = nn.Sequential(*(MixerLayer(tokens, dim) for _ in range(depth)), nn.LayerNorm(dim))
        self.out = nn.Linear(dim, len(FINDINGS))

    def forward(self, x):
        return self.out(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class SharpnessAware:
    """Ascend to the worst nearby point, take the gradient there, step from the original weights."""

    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.params]
        norm = torch.nn.utils.get_total_norm(grads)
        kept = [p.detach().clone() for p in self.params]
        torch._foreach_add_(self.params, torch._foreach_mul(grads, self.rho / (norm.item() + 1e-12)))
        return kept

    @torch.no_grad()
    def descend(self, kept):
        torch._foreach_copy_(self.params, kept)
        self.base.step()

    def step(self, closure):
        self.base.zero_grad()
        first = closure()
        kept = self.climb()
        self.base.zero_grad()
        second = closure()
        self.descend(kept)
        return first, second


def weights_for(y, pos=2.0):
    return 1 + (pos - 1) * y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--crop", type=int, default=128)
    ap.add_argument("--rho", type=float, default=0.05)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    torch.manual_seed(91)
    store = FilmStore(160, 144, args.crop, 92)
    model = FilmMixer(args.crop)
    base = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, fused=True)
    sam = SharpnessAware(model.parameters(), base, args.rho)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(base, args.steps)
    for step in range(1, args.steps + 1):
        x, y = store.sample(args.batch)
        w = weights_for(y)

        def closure():
            loss = F.binary_cross_entropy_with_logits(model(x), y, weight=w)
            loss.backward()
            return loss.detach()

        first, second = sam.step(closure)
        sched.step()
        if step % args.log_every == 0:
            print(f"step {step:4d} loss {first.item():.5f} sharpness {(second - first).item():.5f}", flush=True)


if __name__ == "__main__":
    main()

import argparse
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, m1, m2):
        super().__init__()
        self.cin, self.cout, self.m1, self.m2 = cin, cout, m1, m2
        scale = 1.0 / (cin * cout)
        self.low = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, 2))
        self.high = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, 2))

    def forward(self, x):
        h, w = x.shape[-2:]
        x_ft = torch.fft.rfft2(x)
        weight = torch.zeros(self.cin, self.cout, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        weight[:, :, :self.m1, :self.m2] = torch.view_as_complex(self.low)
        weight[:, :, -self.m1:, :self.m2] = torch.view_as_complex(self.high)
        out_ft = torch.einsum("bixy,ioxy->boxy", x_ft, weight)
        return torch.fft.irfft2(out_ft, s=(h, w))


class OperatorBlock(nn.Module):
    def __init__(self, width, modes, last=False):
        super().__init__()
        self.spectral = SpectralConv2d(width, width, modes, modes)
        self.skip = nn.Conv2d(width, width, 1)
        self.ff = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))
        self.last = last

    def forward(self, x):
        y = self.ff(self.spectral(x) + self.skip(x))
        return y if self.last else F.gelu(y)


class FNO(nn.Module):
    def __init__(self, width=20, modes=12, depth=4):
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.blocks = nn.Sequential(*[OperatorBlock(width, modes, i == depth - 1) for i in range(depth)])
        self.head = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))
        self._grid = None

    def grid(self, x):
        if self._grid is None or self._grid.shape[-2:] != x.shape[-2:]:
            gy = torch.linspace(0, 1, x.shape[-2])
            gx = torch.linspace(0, 1, x.shape[-1])
            self._grid = torch.stack(torch.meshgrid(gy, gx, indexing="ij"))[None]
        return self._grid.expand(x.shape[0], -1, -1, -1)

    def forward(self, a):
        return self.head(self.blocks(self.lift(torch.cat([a, self.grid(a)], 1))))


class DarcyPairs:
    """Permeability fields and surrogate pressure fields, generated spectrally."""

    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        k = torch.fft.fftfreq(size, 1.0 / size)
        k2 = k[:, None] ** 2 + k[None, :] ** 2
        cov = size * (4 * math.pi ** 2 * k2 + 9.0) ** -1.0
        noise = torch.randn(n, size, size, generator=g)
        field = torch.fft.ifft2(torch.fft.fft2(noise) * cov).real
        self.a = torch.where(field > 0, 12.0, 3.0)[:, None]
        lap = (4 * math.pi ** 2 * k2 + 1.0)
        u = torch.fft.ifft2(torch.fft.fft2(1.0 / self.a[:, 0]) / lap).real
        self.u = ((u - u.mean()) / u.std())[:, None]
        self.a = (self.a - self.a.mean()) / self.a.std()

    def split(self, n_train):
        return (self.a[:n_train], self.u[:n_train]), (self.a[n_train:], self.u[n_train:])


def relative_l2(pred, true):
    d = (pred - true).flatten(1).norm(dim=1)
    return (d / true.flatten(1).norm(dim=1)).mean()


@torch.no_grad()
def evaluate(model, a, u, bs):
    model.eval()
    tot = 0.0
    for i in range(0, len(a), bs):
        tot += relative_l2(model(a[i:i + bs]), u[i:i + bs]).item() * len(a[i:i + bs])
    model.train()
    return tot / len(a)


def minibatches(n, bs, gen):
    while True:
        order = torch.randperm(n, generator=gen)
        for i in range(0, n - bs + 1, bs):
            yield order[i:i + bs]


def main():
    ap = argparse.ArgumentParser(description="Fourier operator for Darcy flow")
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--bs", type=int, default=6)
    ap.add_argument("--res", type=int, default=48)
    ap.add_argument("--modes", type=int, default=12)
    ap.add_argument("--width", type=int, default=20)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()

    torch.manual_seed(a.seed)
    (xa, xu), (va, vu) = DarcyPairs(320, a.res, a.seed).split(300)
    model = FNO(a.width, a.modes)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr, weight_decay=1e-5)
    sch = torch.optim.lr_scheduler.StepLR(opt, 40, 0.5)
    it = minibatches(len(xa), a.bs, torch.Generator().manual_seed(a.seed))
    t0 = time.time()
    for step in range(1, a.steps + 1):
        idx = next(it)
        loss = relative_l2(model(xa[idx]), xu[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sch.step()
        if step % 10 == 0:
            print(f"{step:5d} train {loss.item():.4f}")
        if step % a.eval_every == 0:
            print(f"{step:5d} valid {evaluate(model, va, vu, a.bs):.4f}")
    print(f"done in {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()

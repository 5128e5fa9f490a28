"""Fourier neural operator for a 2-D advection-diffusion surrogate."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SpectralMix(nn.Module):
    def __init__(self, ch, modes, precise=True):
        super().__init__()
        self.modes, self.precise = modes, precise
        self.re = nn.Parameter(torch.randn(ch, ch, modes, modes) / ch)
        self.im = nn.Parameter(torch.randn(ch, ch, modes, modes) / ch)

    def forward(self, x):
        h, w = x.shape[-2:]
        u = x.double() if self.precise else x
        spec = torch.fft.rfft2(u, norm="ortho")
        weight = torch.complex(self.re.to(u.dtype), self.im.to(u.dtype))
        low = torch.einsum("bixy,ioxy->boxy", spec[..., : self.modes, : self.modes], weight)
        full = F.pad(low, (0, w // 2 + 1 - self.modes, 0, h - self.modes))
        return torch.fft.irfft2(full, s=(h, w), norm="ortho").to(x.dtype)


class OperatorNet(nn.Module):
    def __init__(self, ch=16, modes=10, depth=3, precise=True):
        super().__init__()
        self.lift = nn.Conv2d(3, ch, 1)
        self.mix = nn.ModuleList(SpectralMix(ch, modes, precise) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv2d(ch, ch, 1) for _ in range(depth))
        self.drop = nn.Conv2d(ch, 1, 1)

    def forward(self, a):
        h = self.lift(a)
        for mix, local in zip(self.mix, self.local):
            h = h + F.gelu(mix(h) + local(h))
        return self.drop(h)


class AdvectionData:
    def __init__(self, n, size):
        noise = torch.randn(n, 1, size // 8, size // 8)
        self.u0 = F.interpolate(noise, size=(size, size), mode="bicubic")
        self.shift = torch.randint(1, size // 4, (n,))
        rolled = [torch.roll(u, int(s), -1) for u, s in zip(self.u0, self.shift)]
        self.u1 = F.avg_pool2d(torch.stack(rolled), 3, 1, 1)
        y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
        self.speed = self.shift.float()[:, None, None, None] / size
        self.grid = x[None, None].expand(1, 1, size, size)

    def sample(self, k):
        i = torch.randint(0, len(self.u0), (k,))
        u0 = self.u0[i]
        cond = torch.cat([u0, self.speed[i].expand_as(u0), self.grid.expand_as(u0)], 1)
        return cond, self.u1[i]


def relative_l2(pred, true):
    return ((pred - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).mean()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(58)
    data = AdvectionData(128, 48)
    net = OperatorNet(precise=not args.fixed)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for it in range(args.steps):
        a, u = data.sample(8)
        loss = relative_l2(net(a), u)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 5 == 4:
            print(f"iter {it + 1} rel_l2 {loss.item():.5f}")

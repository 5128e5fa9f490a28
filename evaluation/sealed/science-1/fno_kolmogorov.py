"""Fourier neural operator for forced 2-D turbulence (Kolmogorov flow), vorticity form.

The operator maps omega(t) to omega(t + dt); training unrolls it for a few steps.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def wavenumbers(n):
    k = torch.fft.fftfreq(n, d=1.0 / n)
    kx, ky = torch.meshgrid(k, k[: n // 2 + 1].abs(), indexing="ij")
    return kx, ky


class KolmogorovSolver:
    """Semi-implicit pseudo-spectral integrator on the 2*pi torus."""

    def __init__(self, n, nu=2e-3, dt=0.02, k_force=4):
        self.n, self.nu, self.dt = n, nu, dt
        self.kx, self.ky = wavenumbers(n)
        self.k2 = self.kx ** 2 + self.ky ** 2
        self.inv_k2 = torch.where(self.k2 > 0, 1.0 / self.k2.clamp(min=1.0), torch.zeros(()))
        self.dealias = ((self.kx.abs() < n / 3) & (self.ky < n / 3)).float()
        y = torch.arange(n) * (2 * math.pi / n)
        self.force = torch.fft.rfft2((-k_force * torch.cos(k_force * y)).expand(n, n).contiguous())

    def initial(self, batch, gen):
        noise = torch.fft.rfft2(torch.randn(batch, self.n, self.n, generator=gen))
        return noise * 12.0 * (1.0 + self.k2 / 16.0) ** -1.75

    def advance(self, wh, steps):
        for _ in range(steps):
            psi = wh * self.inv_k2
            u = torch.fft.irfft2(1j * self.ky * psi)
            v = torch.fft.irfft2(-1j * self.kx * psi)
            wx = torch.fft.irfft2(1j * self.kx * wh)
            wy = torch.fft.irfft2(1j * self.ky * wh)
            adv = torch.fft.rfft2(u * wx + v * wy) * self.dealias
            rhs = wh + self.dt * (self.force - 0.1 * wh - adv)
            wh = rhs / (1.0 + self.dt * self.nu * self.k2)
        return wh


def simulate(n, trajectories, frames, gen):
    solver = KolmogorovSolver(n)
    wh = solver.advance(solver.initial(trajectories, gen), 10)
    out = []
    for _ in range(frames):
        out.append(torch.fft.irfft2(wh))
        wh = solver.advance(wh, 5)
    return torch.stack(out, dim=1)


class SpectralMix(nn.Module):
    """Learned linear map on the lowest `modes` frequencies."""

    def __init__(self, width, modes):
        super().__init__()
        self.width, self.modes = width, modes
        scale = 1.0 / width
        self.weight = nn.Parameter(scale * torch.randn(width, width, 2 * modes, modes, dtype=torch.cfloat))

    def kernel(self, h, w):
        m = self.modes
        k = self.weight.new_zeros(self.width, self.width, h, w // 2 + 1)
        k[:, :, :m, :m] = self.weight[:, :, :m]
        k[:, :, -m:, :m] = self.weight[:, :, m:]
        return k

    def forward(self, x):
        h, w = x.shape[-2:]
        xf = torch.fft.rfft2(x, norm="ortho")
        yf = torch.einsum("bihw,iohw->bohw", xf, self.kernel(h, w))
        return torch.fft.irfft2(yf, s=(h, w), norm="ortho")


class Block(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.mix = SpectralMix(width, modes)
        self.skip = nn.Conv2d(width, width, 1)
        self.mlp = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))

    def forward(self, x):
        return x + self.mlp(F.gelu(self.mix(x) + self.skip(x)))


class FNO(nn.Module):
    def __init__(self, n, width, modes, depth):
        super().__init__()
        axis = torch.arange(n) / n
        gx, gy = torch.meshgrid(axis, axis, indexing="ij")
        grid = torch.stack([torch.sin(2 * math.pi * gx), torch.cos(2 * math.pi * gx),
                            torch.sin(2 * math.pi * gy), torch.cos(2 * math.pi * gy)])
        self.register_buffer("grid", grid[None])
        self.lift = nn.Conv2d(5, width, 1)
        self.blocks = nn.ModuleList([Block(width, modes) for _ in range(depth)])
        self.project = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, w):
        x = torch.cat([w[:, None], self.grid.expand(w.shape[0], -1, -1, -1)], dim=1)
        x = self.lift(x)
        for block in self.blocks:
            x = block(x)
        return w + self.project(x)[:, 0]


def relative_l2(pred, true):
    num = (pred - true).flatten(1).norm(dim=1)
    return (num / true.flatten(1).norm(dim=1)).mean()


def batches(fields, batch, unroll, gen):
    trajectories, frames = fields.shape[:2]
    while True:
        tr = torch.randint(trajectories, (batch,), generator=gen)
        t0 = torch.randint(frames - unroll, (batch,), generator=gen)
        yield torch.stack([fields[tr, t0 + k] for k in range(unroll + 1)], dim=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--grid", type=int, default=40)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--modes", type=int, default=12)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--unroll", type=int, default=1)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()

    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(23)
    fields = simulate(args.grid, trajectories=20, frames=12, gen=gen)
    fields = (fields - fields.mean()) / fields.std()
    train, held = fields[:16], fields[16:]

    model = FNO(args.grid, args.width, args.modes, args.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps + 1, pct_start=0.2)

    start = time.perf_counter()
    stream = batches(train, args.batch, args.unroll, gen)
    for step in range(1, args.steps + 1):
        seq = next(stream)
        state, loss = seq[:, 0], 0.0
        for k in range(args.unroll):
            state = model(state)
            loss = loss + relative_l2(state, seq[:, k + 1])
        loss = loss / args.unroll
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % args.log_every == 0:
            rate = step / (time.perf_counter() - start)
            print(f"step {step:4d}  rel-l2 {loss.item():.5f}  {rate:.2f} it/s", flush=True)

    with torch.no_grad():
        err = relative_l2(model(held[:, 0]), held[:, 1])
    print(f"held-out one-step rel-l2 {err.item():.5f}")


if __name__ == "__main__":
    main()

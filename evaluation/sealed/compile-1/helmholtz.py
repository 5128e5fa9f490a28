"""Implicit field for acoustic pressure: sine network fitted to scattered microphone data."""
import argparse
import math
import os

import torch
import torch.nn as nn


class SineLayer(nn.Module):
    def __init__(self, n_in, n_out, omega, first=False):
        super().__init__()
        self.omega = omega
        self.linear = nn.Linear(n_in, n_out)
        bound = 1 / n_in if first else math.sqrt(6 / n_in) / omega
        with torch.no_grad():
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Field(nn.Module):
    def __init__(self, width, depth, omega):
        super().__init__()
        layers = [SineLayer(3, width, omega, first=True)]
        layers += [SineLayer(width, width, omega) for _ in range(depth - 1)]
        self.body = nn.Sequential(*layers)
        self.readout = nn.Linear(width, 2)

    def forward(self, x):
        return self.readout(self.body(x))


class FitObjective(nn.Module):
    def __init__(self, field, huber):
        super().__init__()
        self.field, self.huber = field, huber

    def forward(self, xyz, pressure, weight):
        residual = self.field(xyz) - pressure
        size = residual.square().sum(-1)
        robust = self.huber**2 * (torch.sqrt(1 + size / self.huber**2) - 1)
        return (weight * robust).sum() / weight.sum()


def point_sources(n, k, gen):
    where = torch.rand(n, 3, generator=gen) * 4 - 2
    where[:, 2] += 4.0
    strength = torch.randn(n, 2, generator=gen)

    def pressure(xyz):
        r = torch.cdist(xyz, where).clamp_min(0.1)
        c, s = torch.cos(k * r) / r, torch.sin(k * r) / r
        real = c @ strength[:, :1] - s @ strength[:, 1:]
        imag = c @ strength[:, 1:] + s @ strength[:, :1]
        return torch.cat([real, imag], -1)

    return pressure


class Microphones:
    def __init__(self, n, k, seed):
        gen = torch.Generator().manual_seed(seed)
        truth = point_sources(12, k, gen)
        self.xyz = torch.rand(n, 3, generator=gen) * 2 - 1
        self.pressure = truth(self.xyz)
        self.pressure /= self.pressure.std()
        self.pressure += 0.02 * torch.randn(n, 2, generator=gen)
        self.weight = 0.5 + torch.rand(n, generator=gen)
        self.held_xyz = torch.rand(1024, 3, generator=gen) * 2 - 1
        held = truth(self.held_xyz)
        self.held = held / held.std()
        self.gen = gen

    def batch(self, size):
        i = torch.randint(len(self.xyz), (size,), generator=self.gen)
        return self.xyz[i], self.pressure[i], self.weight[i]


def save(path, field, opt, step):
    torch.save({"field": field.state_dict(), "opt": opt.state_dict(), "step": step}, path + ".part")
    os.replace(path + ".part", path)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--points", type=int, default=60000)
    ap.add_argument("--batch", type=int, default=3072)
    ap.add_argument("--width", type=int, default=256)
    ap.add_argument("--depth", type=int, default=3)
    ap.add_argument("--wavenumber", type=float, default=6.0)
    ap.add_argument("--omega", type=float, default=15.0)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--save-to", default="")
    ap.add_argument("--seed", type=int, default=2)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    mics = Microphones(args.points, args.wavenumber, args.seed)
    field = Field(args.width, args.depth, args.omega)
    objective = torch.compile(FitObjective(field, 0.5), fullgraph=True, dynamic=False)
    opt = torch.optim.Adam(field.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=200, gamma=0.5)

    average = torch.zeros(())
    for step in range(1, args.steps + 1):
        loss = objective(*mics.batch(args.batch))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        average += loss.detach()
        if step % 20 == 0:
            print(f"{step:5d} loss {average.item() / 20:.6f} lr {sched.get_last_lr()[0]:.1e}", flush=True)
            average.zero_()
        if step % 100 == 0:
            with torch.no_grad():
                error = (field(mics.held_xyz) - mics.held).square().mean().sqrt().item()
            print(f"      held-out rmse {error:.4f}", flush=True)
            if args.save_to:
                save(args.save_to, field, opt, step)


if __name__ == "__main__":
    main()

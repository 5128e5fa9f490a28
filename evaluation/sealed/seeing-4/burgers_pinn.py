"""Physics-informed fit of the coupled two-dimensional Burgers equations."""
import argparse
import math

import torch
import torch.nn as nn


class FourierMLP(nn.Module):
    def __init__(self, features=24, width=64, depth=3):
        super().__init__()
        self.register_buffer("freq", torch.randn(3, features) * 1.5)
        dims = [2 * features] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(width, 2)
        for m in self.hidden:
            nn.init.xavier_normal_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, x, y, t):
        z = torch.cat([x, y, t], 1) @ self.freq
        h = torch.cat([torch.sin(z), torch.cos(z)], 1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


class Burgers2d:
    """u_t + u u_x + v u_y = nu (u_xx + u_yy), the same for v, on the unit square."""

    def __init__(self, nu):
        self.nu = nu

    @staticmethod
    def derivative(f, z):
        return torch.autograd.grad(f, z, torch.ones_like(f), create_graph=True)[0]

    def exact(self, x, y, t):
        e = torch.exp((4 * y - 4 * x - t) / (32 * self.nu)).clamp(max=1e6)
        return torch.cat([0.75 - 0.25 / (1 + e), 0.75 + 0.25 / (1 + e)], 1)

    def residual(self, net, x, y, t):
        x, y, t = (z.requires_grad_() for z in (x, y, t))
        uv = net(x, y, t)
        u, v = uv[:, :1], uv[:, 1:]
        out = []
        for w in (u, v):
            w_t = self.derivative(w, t)
            w_x = self.derivative(w, x)
            w_y = self.derivative(w, y)
            w_xx = self.derivative(w_x, x)
            w_yy = self.derivative(w_y, y)
            out.append(w_t + u * w_x + v * w_y - self.nu * (w_xx + w_yy))
        return torch.cat(out, 1)


class Collocation:
    def __init__(self, interior, border, seed):
        self.sobol = torch.quasirandom.SobolEngine(3, scramble=True, seed=seed)
        self.interior, self.border = interior, border
        self.gen = torch.Generator().manual_seed(seed)

    def inside(self):
        return self.sobol.draw(self.interior).split(1, dim=1)

    def start(self):
        x, y = torch.rand(2, self.border, 1, generator=self.gen)
        return x, y, torch.zeros_like(x)

    def walls(self):
        p = torch.rand(self.border, 3, generator=self.gen)
        side = torch.randint(0, 4, (self.border,), generator=self.gen)
        rows = torch.arange(self.border)
        p[rows, side // 2] = (side % 2).float()
        return p.split(1, dim=1)


def train(args):
    torch.manual_seed(args.seed)
    problem, net = Burgers2d(args.nu), FourierMLP()
    points = Collocation(args.interior, args.border, args.seed)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * min(1, s / 20000))))
    weights = {"pde": 1.0, "ic": 20.0, "bc": 5.0}
    for step in range(1, args.steps + 1):
        start, walls = points.start(), points.walls()
        terms = {
            "pde": problem.residual(net, *points.inside()).square().mean(),
            "ic": (net(*start) - problem.exact(*start)).square().mean(),
            "bc": (net(*walls) - problem.exact(*walls)).square().mean(),
        }
        loss = sum(weights[k] * v for k, v in terms.items())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % args.log_every == 0:
            print(f"step {step:6d} total {loss.item():.5f} " + " ".join(f"{k}={v.item():.5f}" for k, v in terms.items()))
    with torch.no_grad():
        g = torch.linspace(0, 1, 32)
        x, y = (m.reshape(-1, 1) for m in torch.meshgrid(g, g, indexing="ij"))
        t = torch.full_like(x, 0.5)
        ref = problem.exact(x, y, t)
        print(f"relative error at t=0.5: {((net(x, y, t) - ref).norm() / ref.norm()).item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--interior", type=int, default=2000)
    ap.add_argument("--border", type=int, default=256)
    ap.add_argument("--nu", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=17)
    train(ap.parse_args())

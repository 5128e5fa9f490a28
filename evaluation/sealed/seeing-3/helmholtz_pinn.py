"""Physics-informed network for the 2-D Helmholtz equation with a point-like source."""
import argparse
import math

import torch
import torch.nn as nn


class SineLayer(nn.Module):
    def __init__(self, i, o, omega, first=False):
        super().__init__()
        self.lin, self.omega = nn.Linear(i, o), omega
        bound = 1 / i if first else math.sqrt(6 / i) / omega
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.lin(x))


class Siren(nn.Module):
    def __init__(self, width=72, depth=3, omega=8.0):
        super().__init__()
        self.net = nn.Sequential(SineLayer(2, width, omega, first=True),
                                 *[SineLayer(width, width, omega) for _ in range(depth - 1)], nn.Linear(width, 1))

    def forward(self, xy):
        return self.net(xy)


class Helmholtz:
    def __init__(self, wavenumber=6.0, source=(0.2, -0.1), spread=0.1):
        self.k2 = wavenumber ** 2
        self.source = torch.tensor(source)
        self.spread = spread

    def forcing(self, xy):
        r2 = ((xy - self.source) ** 2).sum(1, keepdim=True)
        return torch.exp(-r2 / (2 * self.spread ** 2)) / (2 * math.pi * self.spread ** 2)

    def residual(self, net, xy):
        xy = xy.clone().requires_grad_(True)
        u = net(xy)
        du, = torch.autograd.grad(u.sum(), xy, create_graph=True)
        lap = 0.0
        for d in range(2):
            d2, = torch.autograd.grad(du[:, d].sum(), xy, create_graph=True)
            lap = lap + d2[:, d:d + 1]
        return lap + self.k2 * u - self.forcing(xy)


class Collocation:
    """Interior points on a jittered lattice, re-drawn every `refresh` steps, and a fixed boundary set."""

    def __init__(self, n_side, n_boundary, refresh, seed):
        self.n, self.refresh = n_side, refresh
        self.gen = torch.Generator().manual_seed(seed)
        s = torch.linspace(-1, 1, n_boundary)
        one = torch.ones_like(s)
        self.boundary = torch.cat([torch.stack(p, 1) for p in ((s, one), (s, -one), (one, s), (-one, s))])
        self.interior = None

    def update(self, step):
        if self.interior is None or step % self.refresh == 0:
            g = (torch.arange(self.n) + 0.5) / self.n * 2 - 1
            lattice = torch.cartesian_prod(g, g)
            self.interior = lattice + (torch.rand(lattice.shape, generator=self.gen) - 0.5) * 2 / self.n
        return self.interior, self.boundary


class Solver:
    """Drives either Adam or L-BFGS on the same objective."""

    def __init__(self, net, problem, points, args):
        self.net, self.problem, self.points, self.args = net, problem, points, args
        if args.optimizer == "lbfgs":
            self.opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=10, line_search_fn="strong_wolfe")
        else:
            self.opt = torch.optim.Adam(net.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 500, 0.5)
        self.terms = {}

    def objective(self):
        interior, boundary = self.points
        pde = self.problem.residual(self.net, interior).square().mean()
        bc = self.net(boundary).square().mean()
        self.terms = {"pde": pde.detach(), "bc": bc.detach()}
        return pde / self.problem.k2 + self.args.bc_weight * bc

    def closure(self):
        self.opt.zero_grad()
        loss = self.objective()
        loss.backward()
        return loss

    def iterate(self, step):
        loss = self.closure()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"objective is {loss.item()} at step {step}")
        self.opt.step(self.closure)
        self.sched.step()
        return loss.item()

    def run(self, sampler):
        best = float("inf")
        for step in range(1, self.args.steps + 1):
            self.points = sampler.update(step)
            value = self.iterate(step)
            best = min(best, value)
            if step % self.args.log_every == 0:
                t = {k: f"{v.item():.4e}" for k, v in self.terms.items()}
                print(f"step {step} loss {value:.5e} best {best:.5e} pde {t['pde']} bc {t['bc']}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--optimizer", choices=["adam", "lbfgs"], default="adam")
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--side", type=int, default=46)
    ap.add_argument("--boundary", type=int, default=40)
    ap.add_argument("--refresh", type=int, default=25)
    ap.add_argument("--bc-weight", type=float, default=10.0)
    ap.add_argument("--wavenumber", type=float, default=6.0)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    sampler = Collocation(args.side, args.boundary, args.refresh, args.seed)
    Solver(Siren(), Helmholtz(args.wavenumber), None, args).run(sampler)


if __name__ == "__main__":
    main()

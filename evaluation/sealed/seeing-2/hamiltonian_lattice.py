"""Learning the Hamiltonian of a nonlinear lattice from short noisy trajectories (leapfrog roll-outs)."""
import argparse
import math

import torch
from torch import nn


class PairPotential(nn.Module):
    """Neural on-site + bond energies; translation invariant along the chain."""

    def __init__(self, width, depth):
        super().__init__()
        def net(n_in):
            layers, d = [], n_in
            for _ in range(depth):
                layers += [nn.Linear(d, width), nn.Tanh()]
                d = width
            return nn.Sequential(*layers, nn.Linear(d, 1))
        self.site, self.bond = net(1), net(2)
        self.log_mass = nn.Parameter(torch.zeros(()))

    def energy(self, q):
        right = torch.roll(q, -1, 1)
        pair = torch.stack([right - q, 0.5 * (right + q)], -1)
        return self.site(q.unsqueeze(-1)).sum() + self.bond(pair).sum()

    def force(self, q):
        with torch.enable_grad():
            if not q.requires_grad:
                q = q.detach().requires_grad_(True)
            return -torch.autograd.grad(self.energy(q), q, create_graph=self.training)[0]

    def rollout(self, q, p, dt, n):
        qs, ps = [], []
        inv_m = torch.exp(-self.log_mass)
        f = self.force(q)
        for _ in range(n):
            p = p + 0.5 * dt * f
            q = q + dt * inv_m * p
            f = self.force(q)
            p = p + 0.5 * dt * f
            qs.append(q)
            ps.append(p)
        return torch.stack(qs, 1), torch.stack(ps, 1)


def true_force(q):
    def bond(d):
        return d + 0.25 * d ** 3
    d = torch.roll(q, -1, 1) - q
    return bond(d) - torch.roll(bond(d), 1, 1) - 0.3 * torch.sin(q)


@torch.no_grad()
def trajectories(n, sites, frames, dt, sub, gen):
    q = 0.8 * torch.randn(n, sites, generator=gen)
    p = 0.8 * torch.randn(n, sites, generator=gen)
    h = dt / sub
    out_q, out_p = [q], [p]
    f = true_force(q)
    for _ in range(frames - 1):
        for _ in range(sub):
            p = p + 0.5 * h * f
            q = q + h * p
            f = true_force(q)
            p = p + 0.5 * h * f
        out_q.append(q)
        out_p.append(p)
    return torch.stack(out_q, 1), torch.stack(out_p, 1)


class Segments:
    def __init__(self, q, p, length, noise, gen):
        self.q, self.p, self.length, self.noise, self.gen = q, p, length, noise, gen

    def draw(self, b):
        n, frames, _ = self.q.shape
        i = torch.randint(0, n, (b,), generator=self.gen)
        t = torch.randint(0, frames - self.length, (b, 1), generator=self.gen)
        span = t + torch.arange(self.length + 1)
        q, p = self.q[i[:, None], span], self.p[i[:, None], span]
        jitter = self.noise * torch.randn(2, b, q.shape[-1], generator=self.gen)
        return q[:, 0] + jitter[0], p[:, 0] + jitter[1], q[:, 1:], p[:, 1:]


def relative_drift(model, q, p, dt, n):
    model.eval()
    qs, ps = model.rollout(q, p, dt, n)
    with torch.no_grad():
        def total(a, b):
            d = torch.roll(a, -1, -1) - a
            return (0.5 * b ** 2 + 0.5 * d ** 2 + 0.0625 * d ** 4 + 0.3 * (1 - torch.cos(a))).sum(-1)
        e = total(qs, ps)
        out = ((e[:, -1] - e[:, 0]).abs() / e[:, 0].abs()).mean().item()
    model.train()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--sites", type=int, default=16)
    ap.add_argument("--unroll", type=int, default=5)
    ap.add_argument("--dt", type=float, default=0.1)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--depth", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=53)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed)
    q, p = trajectories(256, a.sites, 60, a.dt, 10, gen)
    data = Segments(q[:240], p[:240], a.unroll, 0.005, gen)
    model = PairPotential(a.width, a.depth)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / a.steps)))
    decay = 0.9 ** torch.arange(a.unroll, dtype=torch.float32).view(1, -1, 1)
    for step in range(1, a.steps + 1):
        q0, p0, qt, pt = data.draw(a.batch)
        qs, ps = model.rollout(q0, p0, a.dt, a.unroll)
        loss = (decay * ((qs - qt) ** 2 + (ps - pt) ** 2)).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} mse {loss.item():.3e} mass {model.log_mass.exp().item():.4f}", flush=True)
    print(f"energy drift {relative_drift(model, q[240:, 0], p[240:, 0], a.dt, 30):.4f}")


if __name__ == "__main__":
    main()

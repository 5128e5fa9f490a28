"""Hamiltonian network for interacting planar pendulums, trained through a symplectic rollout."""
import argparse

import torch
import torch.nn as nn


class TrueChain:
    """Pendulums on a ring coupled by springs; used to make reference trajectories."""

    def __init__(self, n, g=1.0, k=0.5):
        self.n, self.g, self.k = n, g, k

    def force(self, q):
        left, right = torch.roll(q, 1, 1), torch.roll(q, -1, 1)
        return -self.g * torch.sin(q) - self.k * (torch.sin(q - left) + torch.sin(q - right))

    @torch.no_grad()
    def trajectories(self, count, frames, dt, inner, gen):
        q = 2 * torch.rand(count, self.n, generator=gen) - 1
        p = torch.randn(count, self.n, generator=gen) * 0.7
        h, out = dt / inner, []
        for _ in range(frames):
            out.append(torch.stack([q, p], -1))
            for _ in range(inner):
                p = p + 0.5 * h * self.force(q)
                q = q + h * p
                p = p + 0.5 * h * self.force(q)
        return torch.stack(out, 1)


class Potential(nn.Module):
    def __init__(self, n, width):
        super().__init__()
        self.inp = nn.Linear(2 * n, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1, bias=False)
        for m in (self.inp, self.mid):
            nn.init.orthogonal_(m.weight)

    def forward(self, q):
        h = torch.tanh(self.inp(torch.cat([torch.sin(q), torch.cos(q)], 1)))
        return self.out(torch.tanh(self.mid(h)))


class SymplecticNet(nn.Module):
    """H(q, p) = sum p^2 / (2 m) + V(q), integrated by velocity Verlet."""

    def __init__(self, n, width=160):
        super().__init__()
        self.log_mass = nn.Parameter(torch.zeros(n))
        self.potential = Potential(n, width)

    def force(self, q):
        v = self.potential(q)
        return -torch.autograd.grad(v.sum(), q, create_graph=torch.is_grad_enabled())[0]

    def rollout(self, q, p, frames, dt):
        inv_mass = torch.exp(-self.log_mass)
        q = q.requires_grad_()
        f, states = self.force(q), []
        for _ in range(frames):
            p = p + 0.5 * dt * f
            q = q + dt * inv_mass * p
            f = self.force(q)
            p = p + 0.5 * dt * f
            states.append(torch.stack([q, p], -1))
        return torch.stack(states, 1)


def windows(traj, batch, frames, gen):
    rows = torch.randint(len(traj), (batch, 1), generator=gen)
    start = torch.randint(traj.shape[1] - frames, (batch, 1), generator=gen)
    return traj[rows, start + torch.arange(frames + 1)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--bodies", type=int, default=8)
    ap.add_argument("--batch", type=int, default=1280)
    ap.add_argument("--frames", type=int, default=5)
    ap.add_argument("--dt", type=float, default=0.1)
    ap.add_argument("--noise", type=float, default=0.005)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=56)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)

    traj = TrueChain(args.bodies).trajectories(256, 80, args.dt, 5, gen)
    traj = traj + args.noise * torch.randn(traj.shape, generator=gen)
    net = SymplecticNet(args.bodies)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        w = windows(traj, args.batch, args.frames, gen)
        pred = net.rollout(w[:, 0, :, 0], w[:, 0, :, 1], args.frames, args.dt)
        err = (pred - w[:, 1:]).square().mean((0, 2, 3))
        loss = err.sum() / args.dt ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} loss {loss.item():.5f} rmse by frame " + " ".join(f"{e:.4f}" for e in err.detach().sqrt().tolist()))


if __name__ == "__main__":
    main()

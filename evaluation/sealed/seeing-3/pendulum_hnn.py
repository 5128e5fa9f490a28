"""Learn a potential energy from trajectories of coupled pendula by differentiating through the integrator."""
import argparse

import torch
import torch.nn as nn


def true_force(q, k=0.6):
    left = torch.cat([torch.zeros_like(q[:, :1]), q[:, :-1]], 1)
    right = torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], 1)
    return -torch.sin(q) - k * (2 * q - left - right)


def reference_data(n, dof, frames, dt, fine, seed):
    g = torch.Generator().manual_seed(seed)
    q = 1.2 * torch.randn(n, dof, generator=g)
    p = 0.5 * torch.randn(n, dof, generator=g)
    h = dt / fine
    traj = [torch.stack([q, p], 1)]
    f = true_force(q)
    for _ in range(frames - 1):
        for _ in range(fine):
            p = p + 0.5 * h * f
            q = q + h * p
            f = true_force(q)
            p = p + 0.5 * h * f
        traj.append(torch.stack([q, p], 1))
    return torch.stack(traj, 1)


class PairPotential(nn.Module):
    """Sum of on-site terms and nearest-neighbour terms, each a small MLP on trigonometric features."""

    def __init__(self, width=48):
        super().__init__()
        mlp = lambda d: nn.Sequential(nn.Linear(d, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1))
        self.site, self.bond = mlp(2), mlp(3)

    def forward(self, q):
        site = self.site(torch.stack([q.sin(), q.cos()], -1)).sum((1, 2))
        pad = torch.nn.functional.pad(q, (1, 1))
        d = pad[:, 1:] - pad[:, :-1]
        bond = self.bond(torch.stack([d, d.sin(), d.cos()], -1)).sum((1, 2))
        return site + bond


class HamiltonianModel(nn.Module):
    def __init__(self, dof, width):
        super().__init__()
        self.potential = PairPotential(width)
        self.log_mass = nn.Parameter(torch.zeros(dof))

    def force(self, q):
        if not q.requires_grad:
            q = q.detach().requires_grad_(True)
        v = self.potential(q).sum()
        return -torch.autograd.grad(v, q, create_graph=True)[0]

    def velocity(self, p):
        return p * torch.exp(-self.log_mass)

    def verlet(self, q, p, h):
        """Kick, drift, kick."""
        p = p + 0.5 * h * self.force(q)
        q = q + h * self.velocity(p)
        p = p + 0.5 * h * self.force(q)
        return q, p

    def forward(self, state, frames, dt, substeps):
        q, p = state.unbind(1)
        out = []
        for _ in range(frames):
            for _ in range(substeps):
                q, p = self.verlet(q, p, dt / substeps)
            out.append(torch.stack([q, p], 1))
        return torch.stack(out, 1)

    def energy(self, state):
        q, p = state.unbind(1)
        return self.potential(q) + 0.5 * (p * self.velocity(p)).sum(1)


def windows(traj, length, batch, gen):
    i = torch.randint(len(traj), (batch,), generator=gen)
    t = torch.randint(traj.shape[1] - length, (batch,), generator=gen)
    steps = t[:, None] + torch.arange(length + 1)
    return traj[i[:, None], steps]


def run(args):
    torch.manual_seed(args.seed)
    traj = reference_data(200, args.dof, 40, args.dt, 10, args.seed)
    model = HamiltonianModel(args.dof, args.width)
    opt = torch.optim.Adam([
        {"params": model.potential.parameters(), "lr": args.lr},
        {"params": [model.log_mass], "lr": 0.1 * args.lr}])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps, eta_min=1e-5)
    gen = torch.Generator().manual_seed(args.seed + 1)
    scale = traj.std((0, 1), keepdim=True)
    for step in range(1, args.steps + 1):
        seq = windows(traj, args.horizon, args.batch, gen)
        pred = model(seq[:, 0], args.horizon, args.dt, args.substeps)
        loss = (((pred - seq[:, 1:]) / scale) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % args.log == 0:
            with torch.no_grad():
                drift = (model.energy(pred[:, -1]) - model.energy(seq[:, 0])).abs().mean()
            print(f"step {step} loss {loss.item():.5f} energy drift {drift.item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--dof", type=int, default=6)
    ap.add_argument("--dt", type=float, default=0.2)
    ap.add_argument("--horizon", type=int, default=4)
    ap.add_argument("--substeps", type=int, default=2)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--log", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    run(ap.parse_args())

"""Recover heat sources in a heterogeneous plate by training an amortised inverse network through an implicit solver."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def conductivity(m, gen):
    """Layered plate with two inclusions."""
    y, x = torch.meshgrid(torch.linspace(0, 1, m), torch.linspace(0, 1, m), indexing="ij")
    k = 0.5 + 0.4 * torch.sin(7 * y + 2 * x)
    for _ in range(2):
        c = torch.rand(2, generator=gen)
        k = torch.where((y - c[0]) ** 2 + (x - c[1]) ** 2 < 0.02, torch.tensor(2.0), k)
    return k.clamp(min=0.1)


def diffusion_matrix(k):
    """Five-point operator with harmonic face conductivities and insulated edges."""
    m = k.shape[0]
    idx = torch.arange(m * m).view(m, m)
    a = torch.zeros(m * m, m * m)
    for i, j, ki, kj in ((idx[:, :-1], idx[:, 1:], k[:, :-1], k[:, 1:]), (idx[:-1], idx[1:], k[:-1], k[1:])):
        face = (2 * ki * kj / (ki + kj)).flatten()
        i, j = i.flatten(), j.flatten()
        a[i, j] += face
        a[j, i] += face
        a.diagonal().index_add_(0, i, -face)
        a.diagonal().index_add_(0, j, -face)
    return a * (m - 1) ** 2


class Plate(nn.Module):
    """Backward Euler for T_t = div(k grad T) - r T + s."""

    def __init__(self, k, dt, loss_rate=0.8):
        super().__init__()
        op = diffusion_matrix(k) - loss_rate * torch.eye(k.numel())
        self.register_buffer("system", torch.eye(k.numel()) - dt * op)
        self.dt = dt

    def step(self, temp, source):
        rhs = temp + self.dt * source
        return torch.linalg.solve(self.system, rhs.t()).t()

    def forward(self, source, n_steps):
        """B x N sources to B x n_steps x N temperatures, starting cold."""
        temp, out = torch.zeros_like(source), []
        for _ in range(n_steps):
            temp = self.step(temp, source)
            out.append(temp)
        return torch.stack(out, 1)


def random_sources(n, m, gen):
    y, x = torch.meshgrid(torch.linspace(0, 1, m), torch.linspace(0, 1, m), indexing="ij")
    c = torch.rand(n, 3, 2, 1, 1, generator=gen)
    amp = torch.rand(n, 3, 1, 1, generator=gen) * 4
    blob = amp * torch.exp(-((y - c[:, :, 0]) ** 2 + (x - c[:, :, 1]) ** 2) / 0.01)
    return blob.sum(1).flatten(1)


class SourceNet(nn.Module):
    """Sensor readings over time to a source map."""

    def __init__(self, n_sensors, n_steps, m, w=48):
        super().__init__()
        self.m, self.base, self.w = m, m // 4, w
        self.embed = nn.Sequential(nn.Linear(n_sensors * n_steps, 256), nn.SiLU(), nn.Linear(256, w * self.base ** 2))
        self.up = nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
                                nn.Conv2d(w, w, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
                                nn.Conv2d(w, w, 3, padding=1), nn.SiLU(),
                                nn.Conv2d(w, 1, 3, padding=1))

    def forward(self, readings):
        h = self.embed(readings.flatten(1)).view(-1, self.w, self.base, self.base)
        return F.softplus(self.up(h)).flatten(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--grid", type=int, default=24)
    ap.add_argument("--sensors", type=int, default=40)
    ap.add_argument("--time-steps", type=int, default=4)
    ap.add_argument("--dt", type=float, default=0.01)
    ap.add_argument("--noise", type=float, default=0.002)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    plate = Plate(conductivity(args.grid, gen), args.dt)
    where = torch.randperm(args.grid ** 2, generator=gen)[: args.sensors]
    truth = random_sources(384, args.grid, gen)
    readings = torch.cat([plate(s, args.time_steps)[:, :, where] for s in truth.split(128)])
    readings = readings + args.noise * torch.randn(readings.shape, generator=gen)
    scale = readings.std()
    net = SourceNet(args.sensors, args.time_steps, args.grid)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(truth), (args.batch,), generator=gen)
        source = net(readings[pick] / scale)
        simulated = plate(source, args.time_steps)[:, :, where]
        misfit = F.mse_loss(simulated / scale, readings[pick] / scale)
        rough = source.view(-1, args.grid, args.grid).diff(dim=1).square().mean()
        loss = misfit + 1e-3 * rough
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            err = (source.detach() - truth[pick]).norm() / truth[pick].norm()
            print(f"step {step} misfit {misfit.item():.5f} rough {rough.item():.4f} source error {err.item():.3f}")


if __name__ == "__main__":
    main()

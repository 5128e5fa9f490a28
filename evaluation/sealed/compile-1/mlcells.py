"""Fit conductances of a population of Morris-Lecar cells to recorded voltage traces."""
import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Protocol:
    dt: float = 0.2
    substeps: int = 4
    windows: int = 8
    e_ca: float = 120.0
    e_k: float = -84.0
    e_l: float = -60.0
    v1: float = -1.2
    v2: float = 18.0
    v3: float = 2.0
    v4: float = 30.0


class CellPopulation(nn.Module):
    def __init__(self, n_cells, proto, n_features):
        super().__init__()
        self.proto = proto
        self.encoder = nn.Sequential(
            nn.Linear(n_features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.log_g = nn.Parameter(torch.log(torch.tensor([4.4, 8.0, 2.0])))
        self.log_phi = nn.Parameter(torch.zeros(1))

    def conductances(self, feats):
        delta = 0.3 * torch.tanh(self.encoder(feats))
        g = torch.exp(self.log_g + delta[:, :3])
        return g[:, 0:1], g[:, 1:2], g[:, 2:3], 20.0 * torch.exp(delta[:, 3:4])

    def advance(self, v, w, stim, gca, gk, gl, cm):
        p = self.proto
        phi = 0.04 * torch.exp(self.log_phi)
        for _ in range(p.substeps):
            open_ca = 0.5 * (1 + torch.tanh((v - p.v1) / p.v2))
            x = (v - p.v3) / p.v4
            w_inf = 0.5 * (1 + torch.tanh(x))
            speed = torch.cosh(0.5 * x)
            ionic = gca * open_ca * (v - p.e_ca) + gk * w * (v - p.e_k) + gl * (v - p.e_l)
            w = w + p.dt * phi * speed * (w_inf - w)
            v = v + p.dt * (stim - ionic) / cm
            if not torch.isfinite(v).all():
                raise FloatingPointError("membrane potential left the finite range")
        return v, w


class Recording:
    """Stimulus currents and the voltage traces measured under them."""

    def __init__(self, n_cells, n_trials, proto, n_features, seed):
        g = torch.Generator().manual_seed(seed)
        self.feats = torch.randn(n_cells, n_features, generator=g)
        self.gen = g
        self.n_trials = n_trials
        self.proto = proto
        truth = CellPopulation(n_cells, proto, n_features)
        with torch.no_grad():
            truth.log_g += 0.15
            truth.log_phi += 0.1
        self.truth = truth
        self.bank = []
        for _ in range(6):
            stim = 90 + 30 * torch.randn(proto.windows, n_cells, n_trials, generator=g)
            with torch.no_grad():
                self.bank.append((stim, torch.stack(rollout(truth.advance, truth, self.feats, stim))))

    def draw(self):
        i = int(torch.randint(len(self.bank), (1,), generator=self.gen))
        return self.bank[i]


def resting_state(shape):
    return torch.full(shape, -60.9), torch.full(shape, 0.015)


def rollout(advance, cells, feats, stim):
    gca, gk, gl, cm = cells.conductances(feats)
    state = resting_state(stim.shape[1:])
    trace = []
    for current in stim:
        state = advance(*state, current, gca, gk, gl, cm)
        trace.append(state[0])
    return trace


def train(args):
    torch.manual_seed(args.seed)
    proto = Protocol(windows=args.windows)
    data = Recording(args.cells, args.trials, proto, 12, args.seed)
    cells = CellPopulation(args.cells, proto, 12)
    advance = torch.compile(cells.advance, backend=args.backend, dynamic=False)
    opt = torch.optim.Adam([
        {"params": cells.encoder.parameters(), "lr": args.lr},
        {"params": [cells.log_g, cells.log_phi], "lr": args.lr * 3},
    ])
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=15)
    for step in range(1, args.steps + 1):
        stim, target = data.draw()
        trace = torch.stack(rollout(advance, cells, data.feats, stim))
        loss = (trace - target).square().mean() / 25.0
        opt.zero_grad(set_to_none=True)
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(cells.parameters(), 1.0)
        opt.step()
        warm.step()
        if step % args.report == 0:
            g = cells.log_g.detach().exp().tolist()
            print(f"{step:4d} loss={loss.item():.6f} |g|={gnorm.item():.3f} "
                  f"gCa={g[0]:.1f} gK={g[1]:.1f} gL={g[2]:.3f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--cells", type=int, default=192)
    ap.add_argument("--trials", type=int, default=256)
    ap.add_argument("--windows", type=int, default=8)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--backend", default="inductor")
    ap.add_argument("--report", type=int, default=10)
    ap.add_argument("--seed", type=int, default=5)
    train(ap.parse_args())

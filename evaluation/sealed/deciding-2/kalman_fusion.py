"""Differentiable Kalman filter for wheel/IMU/range fusion; learns dynamics and noise levels
together with a small network that turns raw range scans into position pseudo-measurements."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STATE, MEAS = 6, 3


def simulate_drives(n, horizon, beams, gen):
    """Planar vehicle with velocity and heading rate, scanned against ring landmarks."""
    dt = 0.1
    pos = torch.randn(n, 2, generator=gen)
    vel = 0.5 * torch.randn(n, 2, generator=gen)
    rate = 0.2 * torch.randn(n, 1, generator=gen)
    ang = torch.linspace(0, 2 * math.pi, beams + 1)[:-1]
    anchors = 6.0 * torch.stack([ang.cos(), ang.sin()], -1)
    scans, truth = [], []
    for _ in range(horizon):
        c, s = torch.cos(rate * dt), torch.sin(rate * dt)
        vel = torch.cat([c * vel[:, :1] - s * vel[:, 1:], s * vel[:, :1] + c * vel[:, 1:]], -1)
        vel = vel + 0.02 * torch.randn(n, 2, generator=gen)
        pos = pos + dt * vel
        rate = rate + 0.02 * torch.randn(n, 1, generator=gen)
        rng = (pos[:, None] - anchors).norm(dim=-1)
        scans.append(rng + 0.1 * torch.randn(n, beams, generator=gen))
        truth.append(torch.cat([pos, rate], -1))
    return torch.stack(scans, 1), torch.stack(truth, 1)


class ScanEncoder(nn.Module):
    def __init__(self, beams, width=256):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 5, stride=2, padding=2, padding_mode="circular")
        self.net = nn.Sequential(nn.Linear(8 * (beams // 2), width), nn.SiLU(), nn.LayerNorm(width),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, MEAS))

    def forward(self, scans):
        b, t, k = scans.shape
        z = F.silu(self.conv(scans.reshape(b * t, 1, k) - 6.0))
        return self.net(z.flatten(1)).view(b, t, MEAS)


class KalmanCore(nn.Module):
    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(torch.eye(STATE) + 0.01 * torch.randn(STATE, STATE))
        self.H = nn.Parameter(torch.eye(MEAS, STATE))
        self.log_q = nn.Parameter(torch.full((STATE,), -3.0))
        self.log_r = nn.Parameter(torch.full((MEAS,), -1.0))
        self.log_p0 = nn.Parameter(torch.zeros(STATE))
        self.m0 = nn.Parameter(torch.zeros(STATE))

    def forward(self, z):
        batch, horizon, _ = z.shape
        A, H = self.A, self.H
        Q, R = torch.diag(self.log_q.exp()), torch.diag(self.log_r.exp())
        m = self.m0.expand(batch, STATE).unsqueeze(-1)
        P = torch.diag(self.log_p0.exp()).expand(batch, STATE, STATE)
        means, nll = [], 0.0
        for t in range(horizon):
            m = A @ m
            P = A @ P @ A.T + Q
            S = H @ P @ H.T + R
            chol = torch.linalg.cholesky(S)
            innov = z[:, t].unsqueeze(-1) - H @ m
            gain = torch.cholesky_solve(H @ P, chol).mT
            white = torch.linalg.solve_triangular(chol, innov, upper=False)
            logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            nll = nll + 0.5 * (white.square().sum((-2, -1)) + logdet)
            m = m + gain @ innov
            P = P - gain @ S @ gain.mT
            P = 0.5 * (P + P.mT)
            means.append(m.squeeze(-1))
        return torch.stack(means, 1), nll / horizon


class FusionModel(nn.Module):
    def __init__(self, beams):
        super().__init__()
        self.encoder = ScanEncoder(beams)
        self.filter = KalmanCore()
        self.readout = nn.Linear(STATE, 3)

    def forward(self, scans, truth, nll_weight=0.05):
        z = self.encoder(scans)
        means, nll = self.filter(z)
        err = F.mse_loss(self.readout(means), truth)
        return err + nll_weight * nll.mean(), err


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=24)
    ap.add_argument("--beams", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(22)
    scans, truth = simulate_drives(1024, args.horizon, args.beams, gen)
    model = FusionModel(args.beams)
    opt = torch.optim.Adam([
        {"params": model.encoder.parameters(), "lr": 1e-3},
        {"params": list(model.filter.parameters()) + list(model.readout.parameters()), "lr": 5e-3},
    ], fused=True)
    for step in range(1, args.steps + 1):
        pick = torch.randint(len(scans), (args.batch,), generator=gen)
        loss, err = model(scans[pick], truth[pick])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if step % 10 == 0 or step == 1:
            print(f"{step:5d} | loss {loss.item():.6f} | mse {err.item():.6f}")


if __name__ == "__main__":
    main()

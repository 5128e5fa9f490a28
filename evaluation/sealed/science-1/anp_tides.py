"""Attentive neural process for tide-gauge like series: fast adaptation from a few readings."""
import argparse
import math
from typing import Iterator, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class Episode(NamedTuple):
    xc: torch.Tensor
    yc: torch.Tensor
    xt: torch.Tensor
    yt: torch.Tensor


def episodes(batch: int, n_target: int, seed: int) -> Iterator[Episode]:
    """Each task is a station: its own constituents, amplitudes and sensor noise."""
    gen = torch.Generator().manual_seed(seed)
    base = torch.tensor([1.0, 1.93, 2.0, 3.87, 0.5, 5.8])
    while True:
        amp = torch.rand(batch, 1, 6, generator=gen) ** 2
        phase = 2 * math.pi * torch.rand(batch, 1, 6, generator=gen)
        omega = base * (1 + 0.05 * torch.randn(batch, 1, 6, generator=gen))
        x = 4 * torch.rand(batch, n_target, 1, generator=gen) - 2
        surge = torch.exp(-4 * (x - 2 * torch.rand(batch, 1, 1, generator=gen)) ** 2)
        y = (amp * torch.sin(omega * x * math.pi + phase)).sum(-1, keepdim=True) + surge
        y = y + 0.03 * torch.randn(y.shape, generator=gen)
        n_context = int(torch.randint(8, 24, (), generator=gen))
        yield Episode(x[:, :n_context], y[:, :n_context], x, y)


def mlp(d_in, d_hidden, d_out, depth):
    layers = [nn.Linear(d_in, d_hidden), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Linear(d_hidden, d_hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(d_hidden, d_out))


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, q, k, v):
        out = F.scaled_dot_product_attention(self.split(self.q(q)), self.split(self.k(k)), self.split(self.v(v)))
        return self.o(out.transpose(1, 2).flatten(2))


class DeterministicPath(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.pair = mlp(2, dim, dim, 3)
        self.where = mlp(1, dim, dim, 2)
        self.cross = CrossAttention(dim, heads)

    def forward(self, xc, yc, xt):
        r = self.pair(torch.cat([xc, yc], dim=-1))
        return self.cross(self.where(xt), self.where(xc), r)


class LatentPath(nn.Module):
    def __init__(self, dim, latent):
        super().__init__()
        self.pair = mlp(2, dim, dim, 3)
        self.stats = mlp(dim, dim, 2 * latent, 2)

    def forward(self, x, y):
        mu, raw = self.stats(self.pair(torch.cat([x, y], dim=-1)).mean(1)).chunk(2, dim=-1)
        return mu, 0.1 + 0.9 * torch.sigmoid(raw)


class Decoder(nn.Module):
    def __init__(self, dim, latent):
        super().__init__()
        self.from_r = nn.Linear(dim + 1, dim)
        self.from_z = nn.Linear(latent, dim, bias=False)
        self.rest = mlp(dim, dim, 2, 4)

    def forward(self, r, z, xt):
        h = self.from_r(torch.cat([r, xt], dim=-1)) + self.from_z(z)[:, None]
        mu, raw = self.rest(F.relu(h)).chunk(2, dim=-1)
        return mu, 0.02 + 0.98 * F.softplus(raw)


def gaussian_kl(mu_q, sd_q, mu_p, sd_p):
    ratio = (sd_q / sd_p).square()
    return 0.5 * (ratio + ((mu_q - mu_p) / sd_p).square() - 1 - ratio.log()).sum(-1)


class AttentiveNP(nn.Module):
    def __init__(self, dim=128, latent=64, heads=4):
        super().__init__()
        self.det = DeterministicPath(dim, heads)
        self.lat = LatentPath(dim, latent)
        self.dec = Decoder(dim, latent)

    def elbo(self, ep: Episode):
        mu_q, sd_q = self.lat(ep.xt, ep.yt)
        mu_p, sd_p = self.lat(ep.xc, ep.yc)
        z = mu_q + sd_q * torch.randn_like(sd_q)
        mu, sd = self.dec(self.det(ep.xc, ep.yc, ep.xt), z, ep.xt)
        err = (ep.yt - mu) / sd
        loglik = (-0.5 * err.square() - sd.log() - 0.5 * math.log(2 * math.pi)).sum((1, 2))
        kl = gaussian_kl(mu_q, sd_q, mu_p, sd_p)
        return loglik, kl

    @torch.no_grad()
    def predict(self, xc, yc, xt):
        mu, _ = self.lat(xc, yc)
        return self.dec(self.det(xc, yc, xt), mu, xt)


class MetaTrainer:
    def __init__(self, args):
        self.args = args
        self.model = AttentiveNP(args.dim, args.latent)
        self.stream = episodes(args.tasks, args.targets, seed=31)
        self.heldout = next(episodes(16, args.targets, seed=77))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 0.1, 1.0, total_iters=30)

    def step(self):
        loglik, kl = self.model.elbo(next(self.stream))
        loss = (kl - loglik).mean() / self.args.targets
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return loss.detach(), kl.detach()

    def heldout_rmse(self):
        ep = self.heldout
        mu, _ = self.model.predict(ep.xc, ep.yc, ep.xt)
        return (mu - ep.yt).square().mean().sqrt().item()

    def run(self):
        for it in range(1, self.args.steps + 1):
            loss, kl = self.step()
            if it % self.args.log_every == 0:
                print(f"it {it:4d} loss {loss.item():.4f} kl {kl.mean().item():.4f}")
            if it % self.args.eval_every == 0:
                print(f"        held-out rmse {self.heldout_rmse():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--tasks", type=int, default=24)
    ap.add_argument("--targets", type=int, default=240)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--latent", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--eval-every", type=int, default=50)
    opts = ap.parse_args()
    torch.manual_seed(30)
    MetaTrainer(opts).run()

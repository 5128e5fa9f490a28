"""Amortised full-covariance posterior over latent macro factors (Gaussian VAE with structured q)."""
import argparse
import math

import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

SERIES, FACTORS = 120, 32


class MacroPanel:
    """Monthly indicators driven by a few correlated factors, with ragged publication edges."""

    def __init__(self, months=4000, seed=0):
        g = torch.Generator().manual_seed(seed)
        load = torch.randn(FACTORS, SERIES, generator=g) / math.sqrt(FACTORS)
        mix = torch.randn(FACTORS, FACTORS, generator=g) / math.sqrt(FACTORS)
        f = torch.zeros(FACTORS)
        rows = []
        for _ in range(months):
            f = 0.9 * f + mix @ torch.randn(FACTORS, generator=g) * 0.4
            rows.append(torch.tanh(f @ load) + 0.1 * torch.randn(SERIES, generator=g))
        self.x = torch.stack(rows)
        self.seen = (torch.rand(months, SERIES, generator=g) > 0.2).float()
        self.g = g

    def sample(self, n):
        i = torch.randint(len(self.x), (n,), generator=self.g)
        return self.x[i], self.seen[i]


class StructuredEncoder(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * SERIES, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.mean = nn.Linear(hidden, FACTORS)
        self.diag = nn.Linear(hidden, FACTORS)
        self.lower = nn.Linear(hidden, FACTORS * (FACTORS - 1) // 2)
        rows, cols = torch.tril_indices(FACTORS, FACTORS, -1)
        self.register_buffer("flat", rows * FACTORS + cols)

    def factor(self, h):
        n = h.shape[0]
        flat = h.new_zeros(n, FACTORS * FACTORS)
        tri = flat.index_copy(1, self.flat, 0.1 * self.lower(h)).view(n, FACTORS, FACTORS)
        return tri + torch.diag_embed(nn.functional.softplus(self.diag(h)) + 1e-3)

    def forward(self, x, seen):
        h = self.net(torch.cat([x * seen, seen], 1))
        L = self.factor(h)
        cov = L @ L.transpose(-1, -2)
        return MultivariateNormal(self.mean(h), covariance_matrix=cov)


class Decoder(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FACTORS, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, SERIES))
        self.log_sigma = nn.Parameter(torch.full((SERIES,), -0.5))

    def log_prob(self, z, x, seen):
        err = (x - self.net(z)) / self.log_sigma.exp()
        ll = -0.5 * err.square() - self.log_sigma - 0.5 * math.log(2 * math.pi)
        return (ll * seen).sum(-1)


class FactorVAE(nn.Module):
    def __init__(self, draws):
        super().__init__()
        self.encoder, self.decoder = StructuredEncoder(), Decoder()
        self.draws = draws
        self.register_buffer("prior_loc", torch.zeros(FACTORS))
        self.register_buffer("prior_tril", torch.eye(FACTORS))

    def forward(self, x, seen):
        q = self.encoder(x, seen)
        z = q.rsample((self.draws,))
        ll = self.decoder.log_prob(z, x, seen).mean(0)
        kl = kl_divergence(q, MultivariateNormal(self.prior_loc, scale_tril=self.prior_tril))
        return ll.mean(), kl.mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=384)
    ap.add_argument("--draws", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(30)
    panel = MacroPanel()
    model = FactorVAE(args.draws)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step in range(1, args.steps + 1):
        ll, kl = model(*panel.sample(args.batch))
        loss = -(ll - min(1.0, step / 30) * kl)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        if step % 10 == 0:
            print(f"step {step} ll {ll.item():.3f} kl {kl.item():.3f}")


if __name__ == "__main__":
    main()

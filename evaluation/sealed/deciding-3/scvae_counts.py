"""Count VAE for single-cell expression (negative binomial likelihood, batch covariate)."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

GENES, BATCHES = 2000, 3


class CellMatrix:
    def __init__(self, cells=3000, seed=0):
        rng = np.random.default_rng(seed)
        kind = rng.integers(0, 6, cells)
        profile = rng.gamma(0.4, 1.0, (6, GENES)).astype(np.float32)
        self.batch = torch.from_numpy(rng.integers(0, BATCHES, cells))
        depth = rng.lognormal(0.0, 0.3, (cells, 1)).astype(np.float32)
        x = rng.poisson(profile[kind] * depth * 1.5).astype(np.float32)
        self.x = torch.from_numpy(x)
        self.log_library = self.x.sum(1, keepdim=True).clamp(min=1).log()
        self.log_factorial = torch.cat([torch.lgamma(c + 1).sum(1) for c in self.x.split(500)])

    def loader(self, size, gen):
        while True:
            for idx in torch.randperm(len(self.x), generator=gen).split(size):
                if len(idx) == size:
                    yield self.x[idx], self.batch[idx], self.log_library[idx], self.log_factorial[idx]


def nb_log_prob(x, mu, theta, log_factorial, eps=1e-8):
    """Negative binomial in the mean / inverse-dispersion parametrisation, summed over genes."""
    log_mix = (theta + mu + eps).log()
    per_gene = (
        theta * ((theta + eps).log() - log_mix)
        + x * ((mu + eps).log() - log_mix)
        + torch.lgamma(x + theta)
        - torch.lgamma(theta)
    )
    return per_gene.sum(-1) - log_factorial


class FC(nn.Sequential):
    def __init__(self, d_in, d_out):
        super().__init__(nn.Linear(d_in, d_out), nn.BatchNorm1d(d_out), nn.ReLU())


class Encoder(nn.Module):
    def __init__(self, hidden, latent):
        super().__init__()
        self.body = nn.Sequential(FC(GENES, hidden), FC(hidden, hidden))
        self.mean, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)

    def forward(self, x):
        h = self.body(torch.log1p(x))
        return Normal(self.mean(h), (0.5 * self.logvar(h).clamp(-8, 8)).exp())


class Decoder(nn.Module):
    def __init__(self, latent, hidden):
        super().__init__()
        self.batch_emb = nn.Embedding(BATCHES, 8)
        self.body = nn.Sequential(FC(latent + 8, hidden), FC(hidden, hidden))
        self.scale = nn.Linear(hidden, GENES)

    def forward(self, z, batch, log_library):
        h = self.body(torch.cat([z, self.batch_emb(batch)], 1))
        return (self.scale(h).log_softmax(-1) + log_library).exp()


class CountVAE(nn.Module):
    def __init__(self, hidden=128, latent=16):
        super().__init__()
        self.encoder = Encoder(hidden, latent)
        self.decoder = Decoder(latent, hidden)
        self.log_theta = nn.Parameter(torch.randn(GENES) * 0.1)

    def dispersion(self, n):
        return self.log_theta.expand(n, GENES).exp()

    def forward(self, x, batch, log_library, log_factorial, kl_weight):
        q = self.encoder(x)
        mu = self.decoder(q.rsample(), batch, log_library)
        rec = nb_log_prob(x, mu, self.dispersion(len(x)), log_factorial)
        kl = kl_divergence(q, Normal(torch.zeros_like(q.loc), torch.ones_like(q.scale))).sum(-1)
        return (kl_weight * kl - rec).mean(), rec.mean().detach(), kl.mean().detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=320)
    ap.add_argument("--kl-warmup", type=int, default=40)
    args = ap.parse_args()
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(1)
    cells = CellMatrix()
    vae = CountVAE()
    opt = torch.optim.Adam(vae.parameters(), lr=1e-3, eps=0.01, weight_decay=1e-6, fused=True)
    stream = cells.loader(args.batch_size, gen)
    for step in range(1, args.steps + 1):
        weight = min(1.0, step / args.kl_warmup)
        loss, rec, kl = vae(*next(stream), weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step} elbo {-loss.item():.2f} rec {rec.item():.2f} kl {kl.item():.3f}")


if __name__ == "__main__":
    main()

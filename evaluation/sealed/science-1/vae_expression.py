"""Variational autoencoder for single-cell expression counts (negative binomial decoder)."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset, random_split


def synth_counts(cells, genes, programs, batches, seed):
    rng = np.random.default_rng(seed)
    usage = rng.gamma(0.3, 1.0, (cells, programs))
    usage /= usage.sum(1, keepdims=True)
    loadings = rng.gamma(0.2, 1.0, (programs, genes))
    site = rng.integers(0, batches, cells)
    effect = np.exp(rng.normal(0, 0.3, (batches, genes)))
    rate = usage @ loadings * effect[site]
    depth = rng.lognormal(7.2, 0.4, (cells, 1))
    rate = rate / rate.sum(1, keepdims=True) * depth
    counts = rng.poisson(rng.gamma(2.0, rate / 2.0))
    return torch.tensor(counts, dtype=torch.float32), torch.tensor(site)


class Encoder(nn.Module):
    def __init__(self, genes, sites, hidden, latent):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(genes + sites, hidden), nn.LayerNorm(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.loc = nn.Linear(hidden, latent)
        self.log_var = nn.Linear(hidden, latent)

    def forward(self, x, site):
        h = self.net(torch.cat([torch.log1p(x), site], dim=-1))
        return self.loc(h), self.log_var(h).clamp(-8.0, 4.0)


class Decoder(nn.Module):
    def __init__(self, genes, sites, hidden, latent):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent + sites, hidden), nn.LayerNorm(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.scale = nn.Linear(hidden, genes)
        self.log_theta = nn.Parameter(torch.zeros(genes))

    def forward(self, z, site, depth):
        share = torch.softmax(self.scale(self.net(torch.cat([z, site], dim=-1))), dim=-1)
        return share * depth, self.log_theta.exp()


def nb_log_prob(x, mu, theta, log_x_fact, eps=1e-8):
    log_tm = torch.log(theta + mu + eps)
    return (theta * (torch.log(theta + eps) - log_tm) + x * (torch.log(mu + eps) - log_tm)
            + torch.lgamma(x + theta) - torch.lgamma(theta) - log_x_fact)


class ExpressionVAE(nn.Module):
    def __init__(self, genes, sites, hidden=256, latent=32):
        super().__init__()
        self.sites, self.latent = sites, latent
        self.encoder = Encoder(genes, sites, hidden, latent)
        self.decoder = Decoder(genes, sites, hidden, latent)
        self.register_buffer("zero", torch.zeros(latent))
        self.register_buffer("eye", torch.eye(latent))

    def prior(self):
        return MultivariateNormal(self.zero, scale_tril=self.eye)

    def posterior(self, x, site):
        loc, log_var = self.encoder(x, site)
        return MultivariateNormal(loc, covariance_matrix=torch.diag_embed(log_var.exp()))

    def forward(self, x, site, log_x_fact):
        onehot = nn.functional.one_hot(site, self.sites).float()
        q = self.posterior(x, onehot)
        z = q.rsample()
        mu, theta = self.decoder(z, onehot, x.sum(1, keepdim=True))
        rec = nb_log_prob(x, mu, theta, log_x_fact).sum(-1)
        kl = kl_divergence(q, self.prior())
        return rec, kl


class Trainer:
    def __init__(self, args):
        self.args = args
        counts, site = synth_counts(args.cells, args.genes, 12, args.sites, seed=1)
        full = TensorDataset(counts, site, torch.lgamma(counts + 1.0))
        gen = torch.Generator().manual_seed(2)
        self.train_set, self.val_set = random_split(full, [0.9, 0.1], generator=gen)
        self.loader = DataLoader(self.train_set, batch_size=args.batch, shuffle=True,
                                 drop_last=True, generator=gen)
        self.model = ExpressionVAE(args.genes, args.sites, args.hidden, args.latent)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr, weight_decay=1e-6)
        self.step = 0

    def kl_weight(self):
        return min(1.0, (self.step + 1) / self.args.kl_warmup)

    def train_step(self, batch):
        rec, kl = self.model(*batch)
        loss = (self.kl_weight() * kl - rec).mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 50.0)
        self.opt.step()
        self.step += 1
        return loss.detach(), kl.detach().mean()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, n = 0.0, 0
        for batch in DataLoader(self.val_set, batch_size=256):
            rec, kl = self.model(*batch)
            total += (kl - rec).sum().item()
            n += len(rec)
        self.model.train()
        return total / n

    def fit(self):
        while self.step < self.args.steps:
            for batch in self.loader:
                loss, kl = self.train_step(batch)
                if self.step % self.args.log_every == 0:
                    print(f"step {self.step} loss {loss.item():.4f} kl {kl.item():.5f} "
                          f"w {self.kl_weight():.3f}")
                if self.step >= self.args.steps:
                    break
        print(f"validation -elbo {self.validate():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cells", type=int, default=3000)
    parser.add_argument("--genes", type=int, default=1000)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--latent", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--kl-warmup", type=int, default=200)
    parser.add_argument("--log-every", type=int, default=10)
    cli = parser.parse_args()
    torch.manual_seed(0)
    Trainer(cli).fit()

"""Hierarchical robust mixture for child growth curves, fitted by stochastic variational
inference (mean-field over subject effects, amortised by a small encoder)."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def synth_cohort(n, visits, seed):
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(n, visits, generator=g).sort(1).values * 5
    cls = torch.randint(4, (n,), generator=g)
    size = 0.1 * torch.randn(n, 1, generator=g)
    tempo = 0.2 * torch.randn(n, 1, generator=g)
    level = torch.tensor([3.0, 3.4, 3.9, 4.3])[cls][:, None]
    curve = level + size + 1.2 * torch.log1p(age * torch.exp(tempo))
    noise = 0.1 * torch.randn(n, visits, generator=g)
    spike = (torch.rand(n, visits, generator=g) < 0.03) * torch.randn(n, visits, generator=g)
    return age, curve + noise + spike


class SubjectEncoder(nn.Module):
    def __init__(self, visits, latent, width=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * visits, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, 2 * latent))

    def forward(self, age, y):
        mu, rho = self.net(torch.cat([age, y], 1)).chunk(2, -1)
        return 0.3 * mu, F.softplus(rho - 2.0) + 1e-3


class GrowthModel(nn.Module):
    latent = 2

    def __init__(self, visits, classes, n_total):
        super().__init__()
        self.encoder = SubjectEncoder(visits, self.latent)
        self.level = nn.Parameter(torch.linspace(2.8, 4.6, classes))
        self.rate = nn.Parameter(torch.full((classes,), 1.0))
        self.log_scale = nn.Parameter(torch.full((classes,), -1.5))
        self.log_df = nn.Parameter(torch.full((classes,), 1.5))
        self.mix = nn.Parameter(torch.zeros(classes))
        self.log_tau = nn.Parameter(torch.full((self.latent,), -1.5))
        self.n_total = n_total

    def student_log_prob(self, y, loc, log_scale, df):
        z = (y - loc) * torch.exp(-log_scale)
        norm = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df) - 0.5 * torch.log(math.pi * df)
        return norm - log_scale - 0.5 * (df + 1) * torch.log1p(z * z / df)

    def curve(self, age, effects):
        size, tempo = effects[..., 0], effects[..., 1]
        grown = torch.log1p(age.unsqueeze(-1) * torch.exp(tempo)[..., None, None])
        return self.level + size[..., None, None] + self.rate * grown

    def posterior(self, age, y):
        return self.encoder(age, y)

    def negative_elbo(self, age, y, eps):
        mu, sd = self.posterior(age, y)
        effects = mu + sd * eps
        loc = self.curve(age, effects)
        df = 1.0 + F.softplus(self.log_df)
        per_visit = self.student_log_prob(y.unsqueeze(-1), loc, self.log_scale, df)
        per_class = per_visit.sum(-2) + torch.log_softmax(self.mix, 0)
        lik = torch.logsumexp(per_class, -1).mean(0)
        tau = self.log_tau.exp()
        kl = (torch.log(tau / sd) + (sd.square() + mu.square()) / (2 * tau.square()) - 0.5).sum(-1)
        return -(lik - kl).mean() * (self.n_total / 1000.0)

    def forward(self, age, y):
        return self.posterior(age, y)


def minibatches(n, size, gen):
    while True:
        for rows in torch.randperm(n, generator=gen).split(size):
            if len(rows) == size:
                yield rows


def fit(args):
    torch.manual_seed(args.seed)
    age, y = synth_cohort(args.subjects, args.visits, args.seed)
    model = GrowthModel(args.visits, args.classes, args.subjects)
    svi = torch.compile(model)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    gen = torch.Generator().manual_seed(args.seed + 1)
    smooth = None
    for it, rows in zip(range(args.steps), minibatches(args.subjects, args.batch, gen)):
        eps = torch.randn(args.samples, args.batch, model.latent, generator=gen)
        loss = svi.negative_elbo(age[rows], y[rows], eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if it % 10 == 0 or it == args.steps - 1:
            w = torch.softmax(model.mix.detach(), 0)
            print(f"iter {it:4d}  -elbo {loss.item():.4f} (avg {smooth:.4f})  weights "
                  + " ".join(f"{v:.3f}" for v in w.tolist()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--subjects", type=int, default=6000)
    ap.add_argument("--visits", type=int, default=16)
    ap.add_argument("--classes", type=int, default=6)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--samples", type=int, default=24)
    ap.add_argument("--seed", type=int, default=19)
    fit(ap.parse_args())

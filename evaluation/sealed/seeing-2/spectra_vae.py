#!/usr/bin/env python
# Convolutional VAE over stellar spectra (1-D), with a learned noise model and beta warm-up.
import argparse
import logging

import numpy as np
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("spectra_vae")


def synth_spectra(n, length, seed):
    rng = np.random.default_rng(seed)
    wav = np.linspace(0, 1, length, dtype=np.float32)
    temp = rng.uniform(0.5, 3.0, (n, 1)).astype(np.float32)
    flux = np.exp(-temp * wav[None]) * (1 + 0.3 * wav[None])
    for centre in rng.uniform(0.05, 0.95, 18):
        depth = rng.uniform(0, 0.6, (n, 1)).astype(np.float32)
        width = rng.uniform(0.002, 0.01)
        flux -= depth * np.exp(-((wav[None] - centre) / width) ** 2).astype(np.float32)
    flux += rng.normal(0, 0.03, flux.shape).astype(np.float32)
    flux = (flux - flux.mean(1, keepdims=True)) / flux.std(1, keepdims=True)
    return torch.from_numpy(flux.astype(np.float32)).unsqueeze(1)


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 7, stride=4, padding=3)
        self.norm = nn.GroupNorm(4, cout)
        self.mix = nn.Conv1d(cout, cout, 3, padding=1)

    def forward(self, x):
        x = nn.functional.silu(self.norm(self.conv(x)))
        return x + nn.functional.silu(self.mix(x))


class Up(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.ConvTranspose1d(cin, cout, 8, stride=4, padding=2)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return nn.functional.silu(self.norm(self.conv(x)))


class SpectraVAE(nn.Module):
    def __init__(self, length, latent, ch=24):
        super().__init__()
        self.latent = latent
        self.enc = nn.Sequential(Down(1, ch), Down(ch, 2 * ch), Down(2 * ch, 4 * ch))
        self.flat = 4 * ch * (length // 64)
        self.to_mu = nn.Linear(self.flat, latent)
        self.to_logvar = nn.Linear(self.flat, latent)
        self.from_z = nn.Linear(latent, self.flat)
        self.dec = nn.Sequential(Up(4 * ch, 2 * ch), Up(2 * ch, ch), Up(ch, ch))
        self.out = nn.Conv1d(ch, 1, 5, padding=2)
        self.log_noise = nn.Parameter(torch.zeros(length))
        self.register_buffer("prior_mu", torch.zeros(latent))
        self.register_buffer("prior_cov", torch.eye(latent))

    def posterior(self, x):
        h = self.enc(x).flatten(1)
        var = self.to_logvar(h).clamp(-8, 6).exp()
        return MultivariateNormal(self.to_mu(h), covariance_matrix=torch.diag_embed(var))

    def prior(self):
        return MultivariateNormal(self.prior_mu, covariance_matrix=self.prior_cov)

    def decode(self, z):
        h = self.from_z(z).view(z.shape[0], self.dec[0].conv.in_channels, -1)
        return self.out(self.dec(h))

    def forward(self, x):
        q = self.posterior(x)
        z = q.rsample()
        rec = self.decode(z)
        noise = nn.functional.softplus(self.log_noise) + 1e-2
        nll = (0.5 * ((x - rec) / noise) ** 2 + noise.log()).sum((1, 2))
        return nll.mean(), kl_divergence(q, self.prior()).mean()


class BetaWarmup:
    def __init__(self, steps, top):
        self.steps, self.top = steps, top

    def __call__(self, t):
        return self.top * min(1.0, t / max(1, self.steps))


def fit(args):
    torch.manual_seed(args.seed)
    spectra = synth_spectra(4096, args.length, args.seed)
    loader = DataLoader(TensorDataset(spectra), args.batch, shuffle=True, drop_last=True)
    vae = SpectraVAE(args.length, args.latent)
    opt = torch.optim.Adam(vae.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)
    beta = BetaWarmup(args.steps // 2, args.beta)

    done = 0
    meter = np.zeros(2)
    while done < args.steps:
        for (x,) in loader:
            nll, kl = vae(x)
            loss = nll + beta(done) * kl
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(vae.parameters(), 50.0)
            opt.step()
            sched.step()
            done += 1
            meter += (nll.item(), kl.item())
            if done % 10 == 0:
                log.info("step %d nll %.3f kl %.3f beta %.2f", done, *(meter / 10), beta(done))
                meter[:] = 0
            if done == args.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--latent", type=int, default=80)
    ap.add_argument("--beta", type=float, default=1.0)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=5)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    fit(ap.parse_args())

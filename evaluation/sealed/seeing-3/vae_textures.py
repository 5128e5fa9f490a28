"""Convolutional VAE on patches of procedurally generated textures, with resumable checkpoints."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def texture_bank(n, size, seed):
    """Band-limited noise with random orientation, n x 1 x size x size in [0, 1]."""
    g = torch.Generator().manual_seed(seed)
    fy = torch.fft.fftfreq(size)[:, None]
    fx = torch.fft.rfftfreq(size)[None]
    bank = torch.empty(n, 1, size, size)
    for i in range(n):
        a, f0 = torch.rand(2, generator=g).tolist()
        ca, sa = np.cos(np.pi * a), np.sin(np.pi * a)
        u, v = ca * fx + sa * fy, -sa * fx + ca * fy
        amp = torch.exp(-((u.abs() - 0.05 - 0.2 * f0) ** 2) / 0.002 - v ** 2 / 0.004)
        spec = amp * torch.polar(torch.ones_like(amp), 6.283 * torch.rand(amp.shape, generator=g))
        x = torch.fft.irfft2(spec, s=(size, size))
        bank[i, 0] = (x - x.min()) / (x.max() - x.min())
    return bank


class Patches:
    def __init__(self, bank, patch, seed):
        self.bank, self.patch = bank, patch
        self.gen = torch.Generator().manual_seed(seed)
        tiles = bank.unfold(2, patch, patch // 2).unfold(3, patch, patch // 2)
        self.tiles = tiles.reshape(-1, 1, patch, patch)
        self.order = torch.randperm(len(self.tiles), generator=self.gen)
        self.tiles = self.tiles[self.order]
        self.pos = 0

    def next(self, n):
        if self.pos + n > len(self.tiles):
            self.pos = 0
        batch = self.tiles[self.pos:self.pos + n]
        self.pos += n
        return batch


class Encoder(nn.Sequential):
    def __init__(self, w, z):
        super().__init__(nn.Conv2d(1, w, 4, 2, 1), nn.SiLU(), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.GroupNorm(8, 2 * w), nn.SiLU(),
                         nn.Conv2d(2 * w, 2 * w, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(2 * w * 36, 2 * z))


class Decoder(nn.Sequential):
    def __init__(self, w, z):
        super().__init__(nn.Linear(z, 2 * w * 36), nn.Unflatten(1, (2 * w, 6, 6)),
                         nn.ConvTranspose2d(2 * w, 2 * w, 4, 2, 1), nn.GroupNorm(8, 2 * w), nn.SiLU(),
                         nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(w, 1, 4, 2, 1))


class VAE(nn.Module):
    def __init__(self, w=24, z=24):
        super().__init__()
        self.enc, self.dec = Encoder(w, z), Decoder(w, z)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


class Run:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.data = Patches(texture_bank(64, 384, args.seed), 48, args.seed)
        self.model = VAE()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99))
        self.preview = self.data.tiles[:16]
        self.path = os.path.join(args.out, "last.pt")
        self.step, self.log = 0, []

    def elbo(self, x):
        recon, mu, logvar = self.model(x)
        rec = F.binary_cross_entropy_with_logits(recon, x, reduction="none").sum((1, 2, 3)).mean()
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
        beta = min(1.0, self.step / self.args.warmup)
        return rec + beta * kl, rec, kl

    @torch.no_grad()
    def reconstruct(self):
        mu, _ = self.model.enc(self.preview).chunk(2, 1)
        return torch.sigmoid(self.model.dec(mu))

    def save(self):
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step, "log": self.log,
                 "preview": self.preview, "recon": self.reconstruct(), "rng": torch.get_rng_state()}
        torch.save(state, self.path + ".part")
        os.replace(self.path + ".part", self.path)

    def fit(self):
        while self.step < self.args.steps:
            loss, rec, kl = self.elbo(self.data.next(self.args.batch))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            self.log.append(loss.item())
            if self.step % self.args.save_every == 0:
                self.save()
                print(f"{self.step} elbo {-loss.item():.2f} rec {rec.item():.2f} kl {kl.item():.2f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=40)
    p.add_argument("--warmup", type=int, default=500)
    p.add_argument("--save-every", type=int, default=10)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "vae_textures"))
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    Run(a).fit()

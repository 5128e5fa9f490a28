"""Convolutional VAE with free bits and KL warm-up."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ConvVAE(nn.Module):
    def __init__(self, latent=24, ch=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, ch, 4, 2, 1), nn.SiLU(), nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.SiLU(), nn.Flatten(),
            nn.Linear(2 * ch * 49, 2 * latent),
        )
        self.dec = nn.Sequential(
            nn.Linear(latent, 2 * ch * 49), nn.SiLU(), nn.Unflatten(1, (2 * ch, 7, 7)),
            nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(ch, 1, 4, 2, 1),
        )

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = torch.addcmul(mu, torch.randn_like(mu), (0.5 * logvar).exp())
        return self.dec(z), mu, logvar


def kl_free_bits(mu, logvar, floor=0.05):
    kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar)
    return kl.mean(0).clamp(min=floor).sum()


class BlobImages:
    def __init__(self, n=1200):
        t = torch.linspace(-1, 1, 28)
        cx, cy = torch.rand(2, n, 1, 1, 1) * 1.2 - 0.6
        w = 0.1 + 0.3 * torch.rand(n, 1, 1, 1)
        dist = (t.view(1, 1, 1, -1) - cx) ** 2 + (t.view(1, 1, -1, 1) - cy) ** 2
        self.x = torch.exp(-dist / w ** 2)

    def batch(self, k):
        x = self.x[torch.randint(0, len(self.x), (k,))]
        return torch.bernoulli(x)


def train(steps):
    torch.manual_seed(353)
    data, vae = BlobImages(), ConvVAE()
    opt = torch.optim.Adam(vae.parameters(), lr=2e-3, fused=True)
    for step in range(steps):
        x = data.batch(64)
        logits, mu, logvar = vae(x)
        rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        kl = kl_free_bits(mu, logvar)
        loss = rec + min(1.0, (step + 1) / 15) * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} rec {rec.item():.4f} kl {kl.item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    train(ap.parse_args().steps)

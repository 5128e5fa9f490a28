"""Deep latent Gaussian model trained with HMC-refined posterior samples (Hoffman 2017)."""
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

PIXELS, LATENT = 400, 12


def strokes(n, gen):
    """20x20 drawings of one random arc each."""
    t = torch.linspace(0, 1, 24)
    c = torch.rand(n, 2, 1, generator=gen) * 10 + 5
    r = torch.rand(n, 1, generator=gen) * 5 + 2
    a0, da = torch.rand(n, 1, generator=gen) * 2 * math.pi, torch.rand(n, 1, generator=gen) * 4 + 1
    ang = a0 + da * t
    pts = c + torch.stack([ang.cos() * r, ang.sin() * r], 1)
    grid = torch.arange(20.0)
    wx = torch.exp(-(grid[None, :, None] - pts[:, :1]) ** 2)
    wy = torch.exp(-(grid[None, :, None] - pts[:, 1:]) ** 2)
    img = torch.einsum("nxt,nyt->nxy", wx, wy).clamp(max=1)
    return (img > 0.4).float().flatten(1)


class Decoder(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(),
                                 nn.Linear(hidden, PIXELS))

    def neg_log_joint(self, z, x):
        rec = F.binary_cross_entropy_with_logits(self.net(z), x, reduction="none").sum(-1)
        return rec + 0.5 * z.square().sum(-1)


class Encoder(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, 2 * LATENT))

    def forward(self, x):
        mu, log_sd = self.net(x).chunk(2, -1)
        return mu, log_sd.clamp(-4, 1)


class HMC:
    """Fixed-length trajectories with Metropolis correction and a shared adaptive step size."""

    def __init__(self, leapfrogs, step_size=0.08, target=0.8):
        self.leapfrogs, self.eps, self.target = leapfrogs, step_size, target

    @staticmethod
    def energy_and_grad(decoder, z, x):
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            u = decoder.neg_log_joint(z, x)
            g, = torch.autograd.grad(u.sum(), z)
        return u.detach(), g

    def leap(self, decoder, z, p, x):
        _, g = self.energy_and_grad(decoder, z, x)
        p = p - 0.5 * self.eps * g
        z = z + self.eps * p
        u, g = self.energy_and_grad(decoder, z, x)
        p = p - 0.5 * self.eps * g
        return z, p, u

    @torch.no_grad()
    def refine(self, decoder, z0, x):
        p = torch.randn_like(z0)
        u0, _ = self.energy_and_grad(decoder, z0, x)
        h0 = u0 + 0.5 * p.square().sum(-1)
        z = z0
        for _ in range(self.leapfrogs):
            z, p, u = self.leap(decoder, z, p, x)
        h1 = u + 0.5 * p.square().sum(-1)
        accept = torch.rand_like(h0) < (h0 - h1).exp()
        rate = accept.float().mean().item()
        self.eps *= math.exp(0.05 * (rate - self.target))
        return torch.where(accept[:, None], z, z0), rate


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=320)
    ap.add_argument("--leapfrogs", type=int, default=5)
    args = ap.parse_args()
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(14)
    data = strokes(4000, gen)
    enc, dec = Encoder(), Decoder()
    hmc = HMC(args.leapfrogs)
    opt = torch.optim.Adam([{"params": dec.parameters()}, {"params": enc.parameters(), "lr": 5e-4}], lr=1e-3, fused=True)
    for step in range(1, args.steps + 1):
        x = data[torch.randint(len(data), (args.batch,), generator=gen)]
        mu, log_sd = enc(x)
        z0 = mu + log_sd.exp() * torch.randn_like(mu)
        enc_loss = dec.neg_log_joint(z0, x) - log_sd.sum(-1)
        z, rate = hmc.refine(dec, z0.detach(), x)
        dec_loss = dec.neg_log_joint(z, x)
        opt.zero_grad()
        enc_grads = torch.autograd.grad(enc_loss.mean(), list(enc.parameters()))
        for p, g in zip(enc.parameters(), enc_grads):
            p.grad = g
        dec_loss.mean().backward()
        opt.step()
        if step % 10 == 0:
            print(f"{step} encoder {enc_loss.mean().item():.3f} decoder {dec_loss.mean().item():.3f} "
                  f"accept {rate:.3f} eps {hmc.eps:.4f}")


if __name__ == "__main__":
    main()

"""Non-saturating GAN on 2-D toy images with a frozen discriminator in the generator step."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def generator(z, ch):
    return nn.Sequential(
        nn.Linear(z, ch * 49), nn.ReLU(), nn.Unflatten(1, (ch, 7, 7)),
        nn.ConvTranspose2d(ch, ch // 2, 4, 2, 1), nn.BatchNorm2d(ch // 2), nn.ReLU(),
        nn.ConvTranspose2d(ch // 2, 1, 4, 2, 1), nn.Sigmoid(),
    )


def discriminator(ch):
    return nn.Sequential(
        nn.Conv2d(1, ch, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(2 * ch * 49, 1),
    )


class GANTrainer:
    def __init__(self, images, z=32, batch=32):
        self.images, self.z, self.batch = images, z, batch
        self.g, self.d = generator(z, 32), discriminator(24)
        self.opt_g = torch.optim.Adam(self.g.parameters(), 2e-4, (0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), 2e-4, (0.5, 0.999), fused=True)

    def d_step(self, fake):
        real = self.images[torch.randint(0, len(self.images), (self.batch,))]
        logit = self.d(torch.cat([real, fake.detach()]))
        real_logit, fake_logit = logit.chunk(2)
        loss = F.softplus(-real_logit).mean() + F.softplus(fake_logit).mean()
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def g_step(self, fake):
        self.d.requires_grad_(False)
        loss = F.softplus(-self.d(fake)).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        return loss.detach()

    def step(self):
        fake = self.g(torch.randn(self.batch, self.z))
        return self.d_step(fake), self.g_step(fake)


def rings(n):
    t = torch.linspace(-1, 1, 28)
    r = (t[:, None] ** 2 + t[None, :] ** 2).sqrt()
    rad = 0.3 + 0.5 * torch.rand(n, 1, 1, 1)
    return torch.exp(-((r - rad) / 0.12) ** 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(309)
    trainer = GANTrainer(rings(1000))
    for step in range(args.steps):
        d, g = trainer.step()
        if step % 5 == 0:
            print(f"step {step} d {d.item():.5f} g {g.item():.5f}")


if __name__ == "__main__":
    main()

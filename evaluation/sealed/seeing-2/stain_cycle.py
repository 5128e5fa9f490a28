"""Unpaired stain transfer (H&E <-> IHC) with a cycle-consistent GAN on 56x56 patches."""
import argparse
import itertools
import random

import numpy as np
import torch
import torch.nn as nn


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--size", type=int, default=56)
    p.add_argument("--ngf", type=int, default=16)
    p.add_argument("--ndf", type=int, default=24)
    p.add_argument("--blocks", type=int, default=3)
    p.add_argument("--lambda_A", type=float, default=10.0)
    p.add_argument("--lambda_B", type=float, default=10.0)
    p.add_argument("--lambda_idt", type=float, default=0.0, help="weight of the identity mapping term")
    p.add_argument("--pool", type=int, default=30)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=21)
    return p.parse_args()


class PatchSource:
    """Random patches out of two synthetic whole-slide arrays."""

    def __init__(self, size, seed):
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.slides = []
        for tint in ((0.75, 0.45, 0.70), (0.70, 0.62, 0.50)):
            tex = self.rng.random((128, 128, 1), dtype=np.float32)
            tex = tex.repeat(8, 0).repeat(8, 1)
            grain = self.rng.random((1024, 1024, 3), dtype=np.float32)
            img = (0.6 * tex + 0.2 * grain + 0.2) * np.asarray(tint, np.float32)
            self.slides.append((img.clip(0, 1) * 255).astype(np.uint8))

    def draw(self, domain, n):
        s = self.size
        xs = self.rng.integers(0, 1024 - s, (n, 2))
        crops = np.stack([self.slides[domain][y:y + s, x:x + s] for y, x in xs])
        return torch.from_numpy(crops).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.f = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), nn.InstanceNorm2d(dim), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), nn.InstanceNorm2d(dim))

    def forward(self, x):
        return x + self.f(x)


def generator(ngf, blocks):
    layers = [nn.Conv2d(3, ngf, 5, padding=2), nn.InstanceNorm2d(ngf), nn.ReLU(True)]
    ch = ngf
    for _ in range(2):
        layers += [nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.InstanceNorm2d(ch * 2), nn.ReLU(True)]
        ch *= 2
    layers += [ResBlock(ch) for _ in range(blocks)]
    for _ in range(2):
        layers += [nn.ConvTranspose2d(ch, ch // 2, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(ch // 2), nn.ReLU(True)]
        ch //= 2
    return nn.Sequential(*layers, nn.Conv2d(ch, 3, 5, padding=2), nn.Tanh())


def discriminator(ndf):
    return nn.Sequential(
        nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1), nn.InstanceNorm2d(ndf * 2), nn.LeakyReLU(0.2, True),
        nn.Conv2d(ndf * 2, 1, 4, 1, 1))


class ImagePool:
    def __init__(self, size):
        self.size, self.items = size, []

    def query(self, images):
        out = []
        for im in images:
            if len(self.items) < self.size:
                self.items.append(im)
                out.append(im)
            elif random.random() > 0.5:
                k = random.randrange(self.size)
                out.append(self.items[k])
                self.items[k] = im
            else:
                out.append(im)
        return torch.stack(out)


class StainCycle:
    def __init__(self, opt):
        self.opt = opt
        self.G_A, self.G_B = generator(opt.ngf, opt.blocks), generator(opt.ngf, opt.blocks)
        self.D_A, self.D_B = discriminator(opt.ndf), discriminator(opt.ndf)
        for net in (self.G_A, self.G_B, self.D_A, self.D_B):
            for m in net.modules():
                if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
                    nn.init.normal_(m.weight, 0.0, 0.02)
        self.g_params = list(itertools.chain(self.G_A.parameters(), self.G_B.parameters()))
        self.d_params = list(itertools.chain(self.D_A.parameters(), self.D_B.parameters()))
        self.opt_G = torch.optim.Adam(self.g_params, lr=opt.lr, betas=(0.5, 0.999))
        self.opt_D = torch.optim.Adam(self.d_params, lr=opt.lr, betas=(0.5, 0.999))
        self.pool_A, self.pool_B = ImagePool(opt.pool), ImagePool(opt.pool)
        self.l1 = nn.L1Loss()
        self.losses = {}

    @staticmethod
    def gan(pred, real):
        return ((pred - (1.0 if real else 0.0)) ** 2).mean()

    def step_generators(self, real_A, real_B):
        o = self.opt
        for p in self.d_params:
            p.requires_grad_(False)
        fake_B = self.G_A(real_A)
        rec_A = self.G_B(fake_B)
        fake_A = self.G_B(real_B)
        rec_B = self.G_A(fake_A)
        idt_A = self.l1(self.G_A(real_B), real_B) * o.lambda_B * o.lambda_idt
        idt_B = self.l1(self.G_B(real_A), real_A) * o.lambda_A * o.lambda_idt
        adv = self.gan(self.D_A(fake_B), True) + self.gan(self.D_B(fake_A), True)
        cyc = self.l1(rec_A, real_A) * o.lambda_A + self.l1(rec_B, real_B) * o.lambda_B
        total = adv + cyc + idt_A + idt_B
        self.opt_G.zero_grad()
        total.backward()
        self.opt_G.step()
        self.losses.update(adv=adv.detach(), cyc=cyc.detach(), idt=(idt_A + idt_B).detach())
        return fake_A.detach(), fake_B.detach()

    def step_discriminators(self, real_A, real_B, fake_A, fake_B):
        for p in self.d_params:
            p.requires_grad_(True)
        loss = 0.0
        for net, real, fake in ((self.D_A, real_B, self.pool_B.query(fake_B)),
                                (self.D_B, real_A, self.pool_A.query(fake_A))):
            loss = loss + 0.5 * (self.gan(net(real), True) + self.gan(net(fake), False))
        self.opt_D.zero_grad()
        loss.backward()
        self.opt_D.step()
        self.losses["dis"] = loss.detach()

    def optimize(self, real_A, real_B):
        fakes = self.step_generators(real_A, real_B)
        self.step_discriminators(real_A, real_B, *fakes)


def main():
    opt = options()
    random.seed(opt.seed)
    torch.manual_seed(opt.seed)
    source = PatchSource(opt.size, opt.seed)
    model = StainCycle(opt)
    for it in range(1, opt.steps + 1):
        model.optimize(source.draw(0, opt.batch), source.draw(1, opt.batch))
        if it % 10 == 0:
            print(f"iter {it} " + " ".join(f"{k} {v.item():.4f}" for k, v in model.losses.items()), flush=True)


if __name__ == "__main__":
    main()

"""Class-conditional denoising diffusion on small procedural textures."""
import argparse
import copy
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def render_textures(path, count, size, classes, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    labels = rng.integers(0, classes, count)
    images = np.empty((count, 3, size, size), np.uint8)
    for n, c in enumerate(labels):
        freq = 0.15 + 0.09 * (c % 4) + rng.normal(0, 0.01)
        ang = rng.uniform(0, np.pi)
        wave = np.sin(freq * (xx * np.cos(ang) + yy * np.sin(ang)) * 2 + rng.uniform(0, 6))
        if c >= classes // 2:
            wave = wave * np.sin(freq * (xx * np.sin(ang) - yy * np.cos(ang)) * 2)
        tint = rng.uniform(0.3, 1.0, (3, 1, 1))
        images[n] = np.clip(127.5 + 110 * tint * wave + rng.normal(0, 6, (3, size, size)), 0, 255)
    np.savez(path, images=images, labels=labels)


class Textures(Dataset):
    def __init__(self, root, count=512, size=32, classes=8):
        path = os.path.join(root, f"textures_{count}_{size}.npz")
        if not os.path.exists(path):
            render_textures(path, count, size, classes, seed=9)
        with np.load(path) as data:
            self.images = torch.from_numpy(data["images"]).float() / 127.5 - 1.0
            self.labels = torch.from_numpy(data["labels"])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.images[i]
        if torch.rand(()) < 0.5:
            img = img.flip(-1)
        return img, self.labels[i]


class Conditioning(nn.Module):
    """Sinusoidal time features plus a class vector, through a small MLP."""

    def __init__(self, dim, classes):
        super().__init__()
        half = dim // 2
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(half) / half))
        self.label = nn.Embedding(classes + 1, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t, y):
        phase = t[:, None] * self.freq
        return self.mlp(torch.cat([phase.sin(), phase.cos()], dim=-1)) + self.label(y)


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, cond_dim, drop=0.0):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.cond = nn.Sequential(nn.SiLU(), nn.Conv2d(cond_dim, 2 * c_out, 1))
        self.norm2 = nn.GroupNorm(8, c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.skip = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)
        self.drop = nn.Dropout(drop)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.cond(emb[:, :, None, None].expand(-1, -1, *h.shape[2:])).chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(self.drop(F.silu(h)))
        return h + self.skip(x)


class SelfAttention2d(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        o = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(o)


class UNet(nn.Module):
    def __init__(self, width=32, cond_dim=192, classes=8):
        super().__init__()
        w1, w2 = width, 2 * width
        self.conditioning = Conditioning(cond_dim, classes)
        self.stem = nn.Conv2d(3, w1, 3, padding=1)
        self.down1 = ResBlock(w1, w1, cond_dim)
        self.pool1 = nn.Conv2d(w1, w2, 3, stride=2, padding=1)
        self.down2 = ResBlock(w2, w2, cond_dim)
        self.pool2 = nn.Conv2d(w2, w2, 3, stride=2, padding=1)
        self.mid1 = ResBlock(w2, w2, cond_dim, drop=0.1)
        self.attn = SelfAttention2d(w2)
        self.mid2 = ResBlock(w2, w2, cond_dim)
        self.up2 = ResBlock(2 * w2, w2, cond_dim)
        self.up1 = ResBlock(w2 + w1, w1, cond_dim)
        self.head = nn.Sequential(nn.GroupNorm(8, w1), nn.SiLU(), nn.Conv2d(w1, 3, 3, padding=1))

    def forward(self, x, t, y):
        emb = self.conditioning(t, y)
        a = self.down1(self.stem(x), emb)
        b = self.down2(self.pool1(a), emb)
        m = self.mid1(self.pool2(b), emb)
        m = self.mid2(self.attn(m), emb)
        u = self.up2(torch.cat([F.interpolate(m, scale_factor=2.0), b], 1), emb)
        u = self.up1(torch.cat([F.interpolate(u, scale_factor=2.0), a], 1), emb)
        return self.head(u)


class GaussianDiffusion:
    def __init__(self, steps=1000):
        s = torch.linspace(0, 1, steps + 1)
        f = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
        self.abar = (f[1:] / f[0]).clamp(1e-5, 0.9999)
        self.steps = steps

    def loss(self, net, x0, y):
        t = torch.randint(self.steps, (len(x0),))
        eps = torch.randn_like(x0)
        ab = self.abar[t][:, None, None, None]
        pred = net(ab.sqrt() * x0 + (1 - ab).sqrt() * eps, t.float(), y)
        snr = ab / (1 - ab)
        weight = (snr.clamp(max=5.0) / snr).flatten()
        return (weight * (pred - eps).square().mean(dim=(1, 2, 3))).mean()


class Ema:
    def __init__(self, net, decay=0.999):
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.decay = decay
        self.pairs = ([p for p in self.net.parameters()], [p for p in net.parameters()])

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.pairs[0], self.pairs[1], 1 - self.decay)


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--uncond-prob", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "ddpm_textures"))
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()

    torch.manual_seed(0)
    os.makedirs(args.data, exist_ok=True)
    data = Textures(args.data)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    net = UNet(args.width)
    ema = Ema(net)
    diffusion = GaussianDiffusion()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 20))

    stream = cycle(loader)
    for step in range(1, args.steps + 1):
        x, y = next(stream)
        y = torch.where(torch.rand(len(y)) < args.uncond_prob, torch.full_like(y, 8), y)
        loss = diffusion.loss(net, x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        ema.update()
        if step % args.log_every == 0:
            print(f"step {step:5d} | loss {loss.item():.5f} | grad {grad_norm.item():.4f}")

    torch.save(ema.net.state_dict(), os.path.join(args.data, "ema.pt"))


if __name__ == "__main__":
    main()

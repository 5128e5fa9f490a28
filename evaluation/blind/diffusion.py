"""Denoising diffusion on 24x24 procedural sprites."""
import argparse
import copy
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class SpriteBank:
    """Pre-rendered soft-edged discs and bars, sampled uniformly."""

    def __init__(self, n, size, seed):
        g = torch.Generator().manual_seed(seed)
        axis = torch.linspace(-1, 1, size)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        u = torch.rand(n, 6, 1, 1, generator=g) * 2 - 1
        cx, cy, r = 0.5 * u[:, 0], 0.5 * u[:, 1], 0.25 + 0.15 * u[:, 2].abs()
        disc = torch.sigmoid(14 * (r - ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt()))
        bar = torch.sigmoid(14 * (0.12 - (xx * (3 * u[:, 3]).cos() + yy * (3 * u[:, 3]).sin() - 0.4 * u[:, 4]).abs()))
        self.images = torch.stack([disc, bar], dim=1) * 2 - 1
        self.g = g

    def batch(self, n):
        pick = torch.randint(0, len(self.images), (n,), generator=self.g)
        return self.images[pick].contiguous(memory_format=torch.channels_last)


class CosineSchedule(nn.Module):
    def __init__(self, timesteps):
        super().__init__()
        t = torch.linspace(0, 1, timesteps + 1)
        bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        bar = (bar / bar[0]).clamp(1e-5, 0.9999)[1:]
        self.timesteps = timesteps
        self.register_buffer("signal", bar.sqrt()[:, None, None, None])
        self.register_buffer("noise", (1 - bar).sqrt()[:, None, None, None])

    def corrupt(self, x, eps, t):
        return self.signal[t] * x + self.noise[t] * eps


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(e)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, ch=24, channels=2, emb=96):
        super().__init__()
        half = emb // 2
        self.register_buffer("freqs", torch.exp(-math.log(10_000) * torch.arange(half) / half))
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.inp = nn.Conv2d(channels, ch, 3, padding=1)
        self.down1 = ResBlock(ch, ch, emb)
        self.pool1 = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.down2 = ResBlock(2 * ch, 2 * ch, emb)
        self.pool2 = nn.Conv2d(2 * ch, 3 * ch, 3, stride=2, padding=1)
        self.mid = ResBlock(3 * ch, 3 * ch, emb)
        self.up2 = ResBlock(5 * ch, 2 * ch, emb)
        self.up1 = ResBlock(3 * ch, ch, emb)
        self.out = nn.Sequential(nn.GroupNorm(4, ch), nn.SiLU(), nn.Conv2d(ch, channels, 3, padding=1))

    def forward(self, x, t):
        angle = t[:, None] * self.freqs
        e = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        a = self.down1(self.inp(x), e)
        b = self.down2(self.pool1(a), e)
        c = self.mid(self.pool2(b), e)
        c = F.interpolate(c, scale_factor=2.0, mode="nearest")
        b = self.up2(torch.cat([c, b], dim=1), e)
        b = F.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.out(self.up1(torch.cat([b, a], dim=1), e))


class EMA:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.pairs = list(self.model.parameters()), list(model.parameters())

    @torch.no_grad()
    def update(self, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self.pairs, 1 - decay)


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.bank = SpriteBank(2000, args.size, args.seed)
        self.schedule = CosineSchedule(args.timesteps)
        self.model = UNet().to(memory_format=torch.channels_last)
        self.ema = EMA(self.model, 0.995)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, fused=True)
        # fixed validation batch so the curve is comparable between runs
        self.val_x = self.bank.batch(args.batch)
        self.val_eps = torch.randn_like(self.val_x)
        self.val_t = torch.linspace(0, args.timesteps - 1, args.batch).long()

    def loss(self, model, x, eps, t):
        return F.mse_loss(model(self.schedule.corrupt(x, eps, t), t), eps)

    def train_step(self, step):
        x = self.bank.batch(self.args.batch)
        t = torch.randint(0, self.args.timesteps, (x.shape[0],))
        loss = self.loss(self.model, x, torch.randn_like(x), t)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.ema.update(step)
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        return self.loss(self.ema.model, self.val_x, self.val_eps, self.val_t).item()

    def run(self):
        start, total = time.time(), torch.zeros(())
        for step in range(1, self.args.steps + 1):
            total += self.train_step(step)
            if step % self.args.log_every == 0:
                print(f"{step:5d} train {total.item() / self.args.log_every:.4f} "
                      f"ema-val {self.validate():.4f} ({time.time() - start:.1f}s)")
                total.zero_()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--size", type=int, default=24)
    p.add_argument("--timesteps", type=int, default=400)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--seed", type=int, default=8)
    Trainer(p.parse_args()).run()

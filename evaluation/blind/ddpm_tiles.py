"""Denoising diffusion on 16x16 texture tiles, v-prediction with min-SNR weighting."""
import argparse
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

T = 400

def cosine_alpha_bar():
    t = torch.linspace(0, 1, T + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f / f[0])[1:].clamp(1e-4, 0.9999)

class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(dim // 2) / (dim // 2)))
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        a = t[:, None] * self.freq
        return self.mlp(torch.cat([a.sin(), a.cos()], -1))

class ResBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, i), nn.GroupNorm(4, o)
        self.c1, self.c2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.emb = nn.Linear(emb, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x))) + self.emb(e)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))

class UNet(nn.Module):
    def __init__(self, w=24, emb=64):
        super().__init__()
        self.time = TimeEmbedding(emb)
        self.inp = nn.Conv2d(3, w, 3, padding=1)
        self.d1, self.d2 = ResBlock(w, w, emb), ResBlock(w, 2 * w, emb)
        self.mid = ResBlock(2 * w, 2 * w, emb)
        self.u2, self.u1 = ResBlock(4 * w, w, emb), ResBlock(2 * w, w, emb)
        self.out = nn.Sequential(nn.GroupNorm(4, w), nn.SiLU(), nn.Conv2d(w, 3, 3, padding=1))

    def forward(self, x, t):
        e = F.silu(self.time(t))
        h1 = self.d1(self.inp(x), e)
        h2 = self.d2(F.avg_pool2d(h1, 2), e)
        h = self.mid(h2, e)
        h = F.interpolate(self.u2(torch.cat([h, h2], 1), e), scale_factor=2)
        return self.out(self.u1(torch.cat([h, h1], 1), e))

def make_tiles(n, gen):
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    k = torch.rand(n, 3, 2, 1, 1, generator=gen) * 1.2
    phase = torch.rand(n, 3, 1, 1, generator=gen) * 6.28
    return torch.sin(k[:, :, 0] * x + k[:, :, 1] * y + phase)

@torch.inference_mode()
def preview(model, a_bar, n=4, hops=10):
    x = torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    ts = torch.linspace(T - 1, 0, hops).long().tolist()
    for i, t in enumerate(ts):
        a = a_bar[t]
        v = model(x, torch.full((n,), float(t)))
        x0 = a.sqrt() * x - (1 - a).sqrt() * v
        eps = (1 - a).sqrt() * x + a.sqrt() * v
        nxt = a_bar[ts[i + 1]] if i + 1 < hops else torch.ones(())
        x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
    return x.std().item()

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    tiles, a_bar = make_tiles(1024, gen), cosine_alpha_bar()
    snr = a_bar / (1 - a_bar)
    weight = snr.clamp(max=5.0) / (snr + 1)
    model = UNet()
    shadow = copy.deepcopy(model).requires_grad_(False)
    live, avg = list(model.parameters()), list(shadow.parameters())
    opt = torch.optim.AdamW(live, lr=1e-3)
    running = torch.zeros(())
    clock = time.perf_counter()
    for step in range(1, args.steps + 1):
        x0 = tiles[torch.randint(0, len(tiles), (8,), generator=gen)]
        t = torch.randint(0, T, (8,), generator=gen)
        noise = torch.randn(x0.shape, generator=gen)
        a = a_bar[t].view(-1, 1, 1, 1)
        noisy, target = a.sqrt() * x0 + (1 - a).sqrt() * noise, a.sqrt() * noise - (1 - a).sqrt() * x0
        err = (model(noisy, t.float()) - target).square().mean((1, 2, 3))
        loss = (weight[t] * err).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(live, 1.0)
        opt.step()
        torch._foreach_lerp_(avg, [p.detach() for p in live], 0.005)
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f} mean {running.item() / 50:.5f}")
            running.zero_()
        if step % 150 == 0:
            print(f"  preview std {preview(shadow, a_bar):.3f}")
        if step == 10:
            clock = time.perf_counter()
    print(f"step_ms={(time.perf_counter() - clock) * 1e3 / max(1, args.steps - 10):.2f}")

if __name__ == "__main__":
    main()

"""Text-conditioned latent diffusion on synthetic captioned vectors; keeps an averaged copy for sampling."""
import argparse
import copy
import math
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

VOCAB, CAPTION_LEN = 49408, 12
LATENT_TOKENS, LATENT_DIM = 24, 16


class CaptionedLatents:
    """Each caption picks a few concept words; the latent is a mixture of the concepts' prototypes."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        proto = rng.normal(size=(64, LATENT_TOKENS, LATENT_DIM)).astype(np.float32)
        concept = rng.integers(0, 64, size=(n, 3))
        self.latent = torch.from_numpy(proto[concept].mean(axis=1) + 0.1 * rng.normal(size=(n, 1, 1)).astype(np.float32))
        words = rng.integers(64, VOCAB, size=(n, CAPTION_LEN))
        words[:, :3] = concept
        self.caption = torch.from_numpy(words)

    def stream(self, batch_size):
        while True:
            perm = torch.randperm(len(self.latent))
            for idx in perm.split(batch_size):
                if len(idx) == batch_size:
                    words = self.caption[idx]
                    drop = torch.rand(words.shape) < 0.1
                    yield self.latent[idx], words.masked_fill(drop, 0)


class TextEncoder(nn.Module):
    def __init__(self, dim=192, out_dim=160):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(1, CAPTION_LEN, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, out_dim)

    def forward(self, ids):
        return self.proj(self.layers(self.embed(ids) + self.pos))


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    ang = t[:, None].float() * freqs[None]
    return torch.cat([ang.cos(), ang.sin()], dim=1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.SiLU(), nn.Linear(3 * dim, dim))
        self.ada = nn.Linear(dim, 4 * dim)

    def forward(self, x, c):
        s1, b1, s2, b2 = self.ada(F.silu(c)).unsqueeze(1).chunk(4, dim=2)
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x) * (1 + s1) + b1).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x) * (1 + s2) + b2)


class LatentDiffusion(nn.Module):
    def __init__(self, dim=160, depth=3, T=1000):
        super().__init__()
        self.dim, self.T = dim, T
        self.text_encoder = TextEncoder(out_dim=dim)
        self.text_encoder.requires_grad_(False).eval()
        self.inp, self.out = nn.Linear(LATENT_DIM, dim), nn.Linear(dim, LATENT_DIM)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(DiTBlock(dim, 4) for _ in range(depth))
        self.register_buffer("alpha_bar", torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), dim=0))

    def denoise(self, z, t, text):
        x = torch.cat([self.inp(z), text], dim=1)
        c = self.time(timestep_embedding(t, self.dim))
        for block in self.blocks:
            x = block(x, c)
        return self.out(x[:, :LATENT_TOKENS])

    def forward(self, latent, caption):
        with torch.no_grad():
            text = self.text_encoder(caption)
        t = torch.randint(0, self.T, (len(latent),))
        noise = torch.randn_like(latent)
        ab = self.alpha_bar[t].view(-1, 1, 1)
        return F.mse_loss(self.denoise(ab.sqrt() * latent + (1 - ab).sqrt() * noise, t, text), noise)


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for avg, cur in zip(self.shadow.parameters(), model.parameters()):
            avg.mul_(self.decay).add_(cur, alpha=1 - self.decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=5000)
    ap.add_argument("--batch-size", type=int, default=6)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    torch.manual_seed(31)
    data = CaptionedLatents(8192, seed=31)
    model = LatentDiffusion()
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.01, fused=True)
    ema = EMA(model)
    avg, t0 = None, time.time()
    for step, (latent, caption) in enumerate(data.stream(args.batch_size), start=1):
        loss = model(latent, caption)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        ema.update(model)
        avg = loss.item() if avg is None else 0.98 * avg + 0.02 * loss.item()
        if step % 25 == 0:
            print(f"step {step} loss {avg:.4f} {(time.time() - t0) / step * 1e3:.1f} ms", flush=True)
        if step % 500 == 0:
            torch.manual_seed(1000 + step)
            with torch.no_grad():
                print(f"  averaged model loss {ema.shadow(data.latent[:64], data.caption[:64]).item():.4f}", flush=True)
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()

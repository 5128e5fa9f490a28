"""Masked token prediction on video patches with factorised space-time attention."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def bouncing(n, frames, size, gen):
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    t = torch.arange(frames)[None, :]
    out = torch.zeros(n, frames, size, size)
    for _ in range(2):
        r = torch.rand(n, 5, 1, generator=gen)
        fold = lambda p: (size - 1) - ((p % (2 * (size - 1))) - (size - 1)).abs()
        cy = fold(r[:, 0] * size + (r[:, 1] - 0.5) * 6 * t)[..., None, None]
        cx = fold(r[:, 2] * size + (r[:, 3] - 0.5) * 6 * t)[..., None, None]
        out += torch.exp(-((y - cy) ** 2 + (x - cx) ** 2) / (4 + 12 * r[:, 4, :, None, None]))
    return out


def patchify(video, p):
    """B x T x H x W to B x T x N x p*p"""
    b, t, h, w = video.shape
    return video.view(b, t, h // p, p, w // p, p).permute(0, 1, 2, 4, 3, 5).reshape(b, t, (h // p) * (w // p), p * p)


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        """Attends along the second to last axis."""
        lead, (n, d) = x.shape[:-2], x.shape[-2:]
        q, k, v = self.qkv(self.norm(x)).reshape(-1, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*lead, n, d)
        return x + self.out(y)


class SpaceTimeBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.space, self.time = Attention(d, heads), Attention(d, heads)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        x = self.space(x)
        x = self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(x)


class MaskedVideoModel(nn.Module):
    def __init__(self, frames, tokens, patch, d=80, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Linear(patch * patch, d)
        self.pos_t = nn.Parameter(0.02 * torch.randn(frames, 1, d))
        self.pos_s = nn.Parameter(0.02 * torch.randn(1, tokens, d))
        self.mask_token = nn.Parameter(torch.zeros(d))
        self.blocks = nn.Sequential(*[SpaceTimeBlock(d, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, patch * patch))

    def forward(self, patches, mask):
        h = torch.where(mask[..., None], self.mask_token, self.embed(patches))
        h = self.blocks(h + self.pos_t + self.pos_s)
        return self.head(h[mask])


def tube_mask(b, t, n, ratio, gen):
    keep = torch.rand(b, 1, n, generator=gen).argsort(2) >= int(ratio * n)
    return ~keep.expand(b, t, n)


def step_lr(opt, step, base, warm):
    for g in opt.param_groups:
        g["lr"] = base * min(1.0, step / warm)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--frames", type=int, default=8)
    ap.add_argument("--size", type=int, default=40)
    ap.add_argument("--patch", type=int, default=5)
    ap.add_argument("--ratio", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    clips = patchify(bouncing(256, args.frames, args.size, gen), args.patch)
    n = clips.shape[2]
    model = MaskedVideoModel(args.frames, n, args.patch)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    for step in range(1, args.steps + 1):
        step_lr(opt, step, args.lr, 20)
        x = clips[torch.randint(len(clips), (args.batch,), generator=gen)]
        mask = tube_mask(args.batch, args.frames, n, args.ratio, gen)
        target = x[mask]
        loss = F.mse_loss(model(x, mask), target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.5f} variance {target.var().item():.5f}")


if __name__ == "__main__":
    main()

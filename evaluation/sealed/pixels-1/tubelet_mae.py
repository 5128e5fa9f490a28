"""Masked autoencoding of short surveillance clips with tube tokens."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

FRAMES, SIZE, TUBE, PATCH = 8, 64, 2, 8
GRID = (FRAMES // TUBE, SIZE // PATCH, SIZE // PATCH)
TOKENS = math.prod(GRID)
PIXELS = TUBE * PATCH * PATCH * 3


class CameraFeed:
    """Clips of a textured backdrop with moving boxes, kept as bytes."""

    def __init__(self, clips, seed):
        g = torch.Generator().manual_seed(seed)
        back = F.interpolate(torch.rand(clips, 3, 8, 8, generator=g), size=(SIZE, SIZE), mode="bilinear")
        video = back.unsqueeze(1).repeat(1, FRAMES + 8, 1, 1, 1)
        for c in range(clips):
            x, y, dx, dy = torch.rand(4, generator=g).mul(torch.tensor([40., 40., 3., 3.])).tolist()
            tone = torch.rand(3, 1, 1, generator=g)
            for t in range(FRAMES + 8):
                i, j = int(y + dy * t) % 48, int(x + dx * t) % 48
                video[c, t, :, i:i + 14, j:j + 14] = tone
        self.video = (video * 255).to(torch.uint8)
        self.gen = g

    def draw(self, n):
        who = torch.randint(self.video.shape[0], (n,), generator=self.gen)
        start = torch.randint(9, (n, 1), generator=self.gen)
        clip = self.video[who.unsqueeze(1), start + torch.arange(FRAMES)]
        if torch.rand((), generator=self.gen) < 0.5:
            clip = clip.flip(-1)
        return clip.float().div_(255)


def tubes(clip):
    b = clip.shape[0]
    t, h, w = GRID
    x = clip.view(b, t, TUBE, 3, h, PATCH, w, PATCH)
    return x.permute(0, 1, 4, 6, 2, 5, 7, 3).reshape(b, TOKENS, PIXELS)


def sincos(dim):
    t, h, w = torch.meshgrid(*(torch.arange(n) for n in GRID), indexing="ij")
    per = dim // 6
    omega = 1.0 / 1000 ** (torch.arange(per) / per)
    parts = []
    for axis in (t, h, w):
        arg = axis.reshape(-1, 1) * omega
        parts += [arg.sin(), arg.cos()]
    table = torch.cat(parts, 1)
    return F.pad(table, (0, dim - table.shape[1]))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.merge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.merge(y)
        return x + self.mlp(self.n2(x))


class MaskedVideoModel(nn.Module):
    def __init__(self, dim=144, depth=4, ddim=96, ddepth=1, keep=0.25):
        super().__init__()
        self.kept = int(TOKENS * keep)
        self.embed = nn.Linear(PIXELS, dim)
        self.register_buffer("pos", sincos(dim))
        self.register_buffer("dpos", sincos(ddim))
        self.encoder = nn.Sequential(*(Layer(dim, 4) for _ in range(depth)), nn.LayerNorm(dim))
        self.bridge = nn.Linear(dim, ddim)
        self.blank = nn.Parameter(torch.zeros(ddim))
        self.decoder = nn.Sequential(*(Layer(ddim, 4) for _ in range(ddepth)))
        self.head = nn.Sequential(nn.LayerNorm(ddim), nn.Linear(ddim, PIXELS))

    def forward(self, tok):
        b = tok.shape[0]
        order = torch.rand(b, TOKENS).argsort(1)
        seen, hidden = order[:, :self.kept], order[:, self.kept:]
        rows = torch.arange(b).unsqueeze(1)
        code = self.bridge(self.encoder(self.embed(tok[rows, seen]) + self.pos[seen]))
        full = torch.cat([code, self.blank.expand(b, hidden.shape[1], -1)], 1) + self.dpos[order]
        guess = self.head(self.decoder(full)[:, self.kept:])
        with torch.no_grad():
            goal = tok[rows, hidden]
            goal = goal - goal.mean(-1, keepdim=True)
            goal *= (goal.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return F.mse_loss(guess, goal)


def groups(model, decay):
    wide = [p for p in model.parameters() if p.ndim > 1]
    thin = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": wide, "weight_decay": decay}, {"params": thin, "weight_decay": 0.0}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    torch.manual_seed(40)
    feed = CameraFeed(64, seed=41)
    model = MaskedVideoModel()
    opt = torch.optim.AdamW(groups(model, 0.05), lr=args.lr, betas=(0.9, 0.95), fused=True)

    def rate(step):
        if step < 8:
            return (step + 1) / 8
        return 0.5 * (1 + math.cos(math.pi * (step - 8) / max(1, args.steps - 8)))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, rate)
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        loss = model(tubes(feed.draw(args.batch)))
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        total += loss.detach()
        if step % args.log_every == 0:
            print(f"step {step:4d} loss {total.item() / args.log_every:.5f} grad {norm.item():.3f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()

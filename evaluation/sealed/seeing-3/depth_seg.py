"""Joint depth and semantic prediction on rendered rooms with one shared encoder."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

N_CLASS = 7


def render_rooms(n, size, gen):
    """Box rooms with a few slabs: image, depth map and label map."""
    v, u = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    img, depth, label = torch.empty(n, 3, size, size), torch.empty(n, size, size), torch.empty(n, size, size, dtype=torch.long)
    palette = torch.rand(N_CLASS, 3, generator=gen)
    for i in range(n):
        r = torch.rand(3, generator=gen) * 0.4 + 0.6
        planes = torch.stack([r[0] / v.clamp(min=1e-2), r[0] / (-v).clamp(min=1e-2), r[1] / u.clamp(min=1e-2),
                              r[1] / (-u).clamp(min=1e-2), torch.full_like(u, 3.5 * float(r[2]))])
        d, l = planes.min(0)
        for k in range(3):
            c = torch.rand(5, generator=gen)
            inside = ((u - 1.6 * c[0] + 0.8).abs() < 0.1 + 0.2 * c[1]) & ((v - 1.2 * c[2] + 0.6).abs() < 0.1 + 0.2 * c[3])
            z = 0.8 + 1.5 * float(c[4])
            front = inside & (z < d)
            d, l = torch.where(front, z, d), torch.where(front, 5 + k % 2, l)
        shade = torch.exp(-0.25 * d)
        img[i] = palette[l].permute(2, 0, 1) * shade + 0.03 * torch.randn(3, size, size, generator=gen)
        depth[i], label[i] = d, l
    return img, depth, label


class ConvGN(nn.Sequential):
    def __init__(self, i, o, stride=1):
        super().__init__(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.GroupNorm(4, o), nn.ReLU())


class Encoder(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.s1 = nn.Sequential(ConvGN(3, w, 2), ConvGN(w, w))
        self.s2 = nn.Sequential(ConvGN(w, 2 * w, 2), ConvGN(2 * w, 2 * w))
        self.s3 = nn.Sequential(ConvGN(2 * w, 4 * w, 2), ConvGN(4 * w, 4 * w), ConvGN(4 * w, 4 * w))

    def forward(self, x):
        a = self.s1(x)
        b = self.s2(a)
        return a, b, self.s3(b)


class Decoder(nn.Module):
    def __init__(self, w, out):
        super().__init__()
        self.lat = nn.ModuleList([nn.Conv2d(c, w, 1) for c in (w, 2 * w, 4 * w)])
        self.smooth = ConvGN(w, w)
        self.out = nn.Conv2d(w, out, 1)

    def forward(self, feats):
        a, b, c = (l(f) for l, f in zip(self.lat, feats))
        b = b + F.interpolate(c, scale_factor=2.0)
        return self.out(self.smooth(a + F.interpolate(b, scale_factor=2.0)))


class TwoHead(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.encoder = Encoder(w)
        self.depth, self.seg = Decoder(w, 1), Decoder(w, N_CLASS)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        f = self.encoder(x)
        return self.depth(f).squeeze(1), self.seg(f)


def silog(pred_log, depth):
    d = pred_log - torch.log(depth)
    return (d ** 2).mean() - 0.85 * d.mean() ** 2


class MultiTask:
    def __init__(self, model, lr, total):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: 0.5 + 0.5 * math.cos(math.pi * min(1, s / total)))
        self.names = ("depth", "seg")

    def task_losses(self, img, depth, label):
        d, s = self.model(img)
        half = (slice(None), slice(None, None, 2), slice(None, None, 2))
        return silog(d, depth[half]), F.cross_entropy(s, label[half])

    def update(self, img, depth, label):
        raw = self.task_losses(img, depth, label)
        self.opt.zero_grad()
        for k, task in enumerate(raw):
            weighted = torch.exp(-self.model.log_var[k]) * task + 0.5 * self.model.log_var[k]
            weighted.backward(retain_graph=k + 1 < len(raw))
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return {n: l.item() for n, l in zip(self.names, raw)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=80)
    ap.add_argument("--rooms", type=int, default=160)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    img, depth, label = render_rooms(args.rooms, args.size, gen)
    trainer = MultiTask(TwoHead(), args.lr, args.steps)
    for step in range(1, args.steps + 1):
        idx = torch.randint(len(img), (args.batch,), generator=gen)
        out = trainer.update(img[idx], depth[idx], label[idx])
        if step % 10 == 0:
            w = torch.exp(-trainer.model.log_var).tolist()
            print(f"{step:5d} " + " ".join(f"{k} {v:.4f}" for k, v in out.items()) + f" weights {w[0]:.3f} {w[1]:.3f}")


if __name__ == "__main__":
    main()

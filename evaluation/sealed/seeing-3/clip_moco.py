"""Momentum-contrast pretraining of a (2+1)D encoder on short moving-shape clips."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class MovingShapes:
    """Clips of drifting blobs; the two views of a clip differ in crop, time offset and contrast."""

    def __init__(self, n, frames, size, seed):
        self.gen = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(size + 8.0), torch.arange(size + 8.0), indexing="ij")
        t = torch.arange(frames + 4.0)
        self.size, self.frames = size, frames
        self.clips = torch.zeros(n, frames + 4, size + 8, size + 8)
        for i in range(n):
            for _ in range(3):
                p = torch.rand(6, generator=self.gen)
                cy = (p[0] * size + (p[1] - 0.5) * 6 * t)[:, None, None]
                cx = (p[2] * size + (p[3] - 0.5) * 6 * t)[:, None, None]
                r = 2 + 4 * p[4]
                self.clips[i] += (0.4 + p[5]) * torch.exp(-((y - cy) ** 2 + (x - cx) ** 2) / r ** 2)

    def view(self, idx):
        out = torch.empty(len(idx), 1, self.frames, self.size, self.size)
        r = torch.randint(0, 5, (len(idx), 3), generator=self.gen)
        gain = 0.6 + 0.8 * torch.rand(len(idx), generator=self.gen)
        for k, i in enumerate(idx.tolist()):
            dt, dy, dx = r[k].tolist()
            out[k, 0] = self.clips[i, dt:dt + self.frames, dy:dy + self.size, dx:dx + self.size] * gain[k]
        return out + 0.05 * torch.randn(out.shape, generator=self.gen)

    def pair(self, batch):
        idx = torch.randint(len(self.clips), (batch,), generator=self.gen)
        return self.view(idx), self.view(idx)


class R2Plus1(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.space = nn.Conv3d(i, o, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(o, o, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
        self.n1, self.n2 = nn.BatchNorm3d(o), nn.BatchNorm3d(o)

    def forward(self, x):
        return F.relu(self.n2(self.time(F.relu(self.n1(self.space(x))))))


class ClipEncoder(nn.Module):
    def __init__(self, w=12, dim=128):
        super().__init__()
        self.body = nn.Sequential(R2Plus1(1, w, 2), R2Plus1(w, 2 * w, 2), R2Plus1(2 * w, 4 * w, 2))
        self.proj = nn.Sequential(nn.Linear(4 * w, 4 * w), nn.ReLU(), nn.Linear(4 * w, dim))

    def forward(self, x):
        return F.normalize(self.proj(self.body(x).mean((2, 3, 4))), dim=1)


class KeyQueue(nn.Module):
    def __init__(self, size, dim):
        super().__init__()
        self.size = size
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))

    @torch.no_grad()
    def push(self, k):
        self.keys = torch.cat([self.keys[len(k):], k])


class MoCo(nn.Module):
    def __init__(self, queue, sampled, dim=128, momentum=0.99, temperature=0.1):
        super().__init__()
        self.q = ClipEncoder(dim=dim)
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.bank = KeyQueue(queue, dim)
        self.m, self.tau, self.sampled = momentum, temperature, sampled

    @torch.no_grad()
    def track(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            b.lerp_(a, 1 - self.m)

    def forward(self, x1, x2):
        q = self.q(x1)
        with torch.no_grad():
            k = self.k(x2)
            pick = torch.randint(self.bank.size, (self.sampled,))
            negatives = self.bank.keys[pick]
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.t()], 1) / self.tau
        self.bank.push(k)
        target = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(logits, target), (logits.argmax(1) == 0).float().mean()


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--frames", type=int, default=8)
    ap.add_argument("--size", type=int, default=48)
    ap.add_argument("--queue", type=int, default=65536)
    ap.add_argument("--negatives", type=int, default=4096)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args(argv)
    torch.manual_seed(args.seed)
    clips = MovingShapes(160, args.frames, args.size, args.seed)
    model = MoCo(args.queue, args.negatives)
    opt = torch.optim.SGD(model.q.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [int(0.6 * args.steps), int(0.8 * args.steps)], 0.1)
    for step in range(1, args.steps + 1):
        loss, acc = model(*clips.pair(args.batch))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        model.track()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} top1 {acc.item():.3f}")


if __name__ == "__main__":
    main()

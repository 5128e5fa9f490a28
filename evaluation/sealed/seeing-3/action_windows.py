"""Temporal action localisation: dense per-window scores over untrimmed synthetic videos."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

ACTIONS = 6


def make_video(length, size, g):
    """A dot that moves in one of several patterns; the pattern changes every few frames."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    pos, frames, labels = torch.tensor([size / 2, size / 2]), [], []
    act, left, phase = 0, 0, 0.0
    for _ in range(length):
        if left == 0:
            act, left = int(torch.randint(ACTIONS, (), generator=g)), int(torch.randint(6, 14, (), generator=g))
        left -= 1
        phase += 0.6
        move = [(0, 0), (0, 2), (0, -2), (2, 0), (-2, 0), (2 * torch.tensor(phase).sin().item(), 2 * torch.tensor(phase).cos().item())][act]
        pos = (pos + torch.tensor(move, dtype=torch.float)) % size
        img = torch.exp(-((y - pos[0]) ** 2 + (x - pos[1]) ** 2) / 8.0)
        frames.append(img + 0.1 * torch.randn(size, size, generator=g))
        labels.append(act)
    return torch.stack(frames)[:, None], torch.tensor(labels)


class VideoSet(torch.utils.data.Dataset):
    def __init__(self, n, length, size, clip, seed):
        g = torch.Generator().manual_seed(seed)
        self.videos = [make_video(length, size, g) for _ in range(n)]
        self.clip, self.rng = clip, random.Random(seed)

    def __len__(self):
        return 16 * len(self.videos)

    def __getitem__(self, i):
        frames, labels = self.videos[i % len(self.videos)]
        s = self.rng.randrange(len(frames) - self.clip)
        return frames[s:s + self.clip], labels[s:s + self.clip]


class FrameEncoder(nn.Module):
    def __init__(self, w=12, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, w, 5, 2, 2), nn.GroupNorm(4, w), nn.SiLU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1), nn.GroupNorm(4, 2 * w), nn.SiLU(),
            nn.Conv2d(2 * w, 2 * w, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.LazyLinear(dim))

    def forward(self, x):
        return self.net(x)


class WindowClassifier(nn.Module):
    """Scores each window of `k` frames; the label of a window is that of its centre frame."""

    def __init__(self, k=5, stride=2, dim=64, hidden=128):
        super().__init__()
        self.k, self.stride = k, stride
        self.encoder = FrameEncoder(dim=dim)
        self.temporal = nn.Conv1d(dim, hidden, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(hidden * k, hidden), nn.SiLU(), nn.Linear(hidden, ACTIONS))

    def windows(self, x):
        """B x T x ... to B x W x k x ..."""
        starts = range(0, x.shape[1] - self.k + 1, self.stride)
        return torch.stack([x[:, s:s + self.k] for s in starts], 1)

    def forward(self, clip):
        win = self.windows(clip)
        b, w, k = win.shape[:3]
        feat = self.encoder(win.flatten(0, 2)).view(b * w, k, -1)
        h = F.silu(self.temporal(feat.transpose(1, 2)))
        return self.head(h.flatten(1)).view(b, w, ACTIONS)

    def targets(self, labels):
        return labels[:, self.k // 2:labels.shape[1] - self.k // 2:self.stride]


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, v, n):
        self.total, self.count = self.total + v * n, self.count + n

    def pop(self):
        v = self.total / max(self.count, 1)
        self.total, self.count = 0.0, 0
        return v


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=11)
    ap.add_argument("--clip", type=int, default=21)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    loader = torch.utils.data.DataLoader(VideoSet(16, 80, args.size, args.clip, args.seed), args.batch, drop_last=True)
    model = WindowClassifier()
    model(torch.zeros(1, args.clip, 1, args.size, args.size))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_m, acc_m, step = Meter(), Meter(), 0
    while step < args.steps:
        for clip, labels in loader:
            logits, y = model(clip), model.targets(labels)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            step += 1
            loss_m.update(loss.item(), len(y))
            acc_m.update((logits.argmax(2) == y).float().mean().item(), len(y))
            if step % 10 == 0:
                print(f"step {step} loss {loss_m.pop():.4f} acc {acc_m.pop():.3f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()

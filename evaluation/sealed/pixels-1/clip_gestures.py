"""Isolated hand-gesture recognition on short RGB clips (one .npz per recording)."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

GESTURES = ["swipe_left", "swipe_right", "push", "pull", "rotate", "idle"]


def ensure_recordings(root, count=72, seed=11):
    os.makedirs(root, exist_ok=True)
    marker = os.path.join(root, "index.txt")
    if os.path.exists(marker):
        return
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:120, 0:120].astype(np.float32)
    names = []
    for k in range(count):
        label = k % len(GESTURES)
        length = int(rng.integers(28, 40))
        phase = np.linspace(0, 1, length, dtype=np.float32)
        dx = {0: -1, 1: 1}.get(label, 0) * 50 * (phase - 0.5)
        dy = {2: -1, 3: 1}.get(label, 0) * 50 * (phase - 0.5)
        if label == 4:
            dx, dy = 25 * np.cos(6.28 * phase), 25 * np.sin(6.28 * phase)
        wall = rng.integers(20, 120, size=(120, 120, 3))
        frames = np.empty((length, 120, 120, 3), np.uint8)
        for t in range(length):
            blob = np.exp(-((xx - 60 - dx[t]) ** 2 + (yy - 60 - dy[t]) ** 2) / 220.0)
            frames[t] = np.clip(wall + 130 * blob[..., None], 0, 255)
        name = f"rec_{k:04d}.npz"
        np.savez(os.path.join(root, name), frames=frames, label=label, fps=30)
        names.append(name)
    with open(marker, "w") as fh:
        fh.write("\n".join(names))


class Recording:
    """Thin reader around one archive."""

    def __init__(self, path):
        self.archive = np.load(path)
        self.label = int(self.archive["label"])

    def __len__(self):
        return self.archive["frames"].shape[0]

    def frame(self, t):
        return self.archive["frames"][t]

    def close(self):
        self.archive.close()


class GestureClips(Dataset):
    def __init__(self, root, segments=8, size=96, train=True):
        with open(os.path.join(root, "index.txt")) as fh:
            self.paths = [os.path.join(root, line.strip()) for line in fh]
        self.segments, self.size, self.train = segments, size, train
        self.mean = np.array([0.36, 0.36, 0.36], np.float32)
        self.std = np.array([0.21, 0.21, 0.21], np.float32)

    def __len__(self):
        return len(self.paths)

    def sample_times(self, n):
        edges = np.linspace(0, n, self.segments + 1)
        if not self.train:
            return ((edges[:-1] + edges[1:]) / 2).astype(int)
        jitter = np.random.rand(self.segments) * np.diff(edges)
        return np.minimum((edges[:-1] + jitter).astype(int), n - 1)

    def __getitem__(self, i):
        rec = Recording(self.paths[i])
        times = self.sample_times(len(rec))
        slack = 120 - self.size
        top, left = np.random.randint(0, slack + 1, 2) if self.train else (slack // 2, slack // 2)
        picked = [rec.frame(t)[top:top + self.size, left:left + self.size] for t in times]
        label = rec.label
        rec.close()
        clip = np.stack(picked).astype(np.float32) / 255.0
        clip = (clip - self.mean) / self.std
        return torch.from_numpy(clip).permute(0, 3, 1, 2), label


class ShiftBlock(nn.Module):
    """Residual 2D block with a temporal channel shift in front."""

    def __init__(self, ch, segments, fold=8):
        super().__init__()
        self.segments, self.fold = segments, ch // fold
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(ch)

    def shift(self, x):
        bt, c, h, w = x.shape
        x = x.view(-1, self.segments, c, h, w)
        f = self.fold
        back = F.pad(x[:, 1:, :f], (0, 0, 0, 0, 0, 0, 0, 1))
        fwd = F.pad(x[:, :-1, f:2 * f], (0, 0, 0, 0, 0, 0, 1, 0))
        return torch.cat([back, fwd, x[:, :, 2 * f:]], 2).view(bt, c, h, w)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(self.shift(x))), inplace=True)
        return F.relu(x + self.bn2(self.conv2(y)))


class ShiftNet(nn.Module):
    def __init__(self, segments, classes, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, stride=4, padding=3, bias=False),
                                  nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.stage1 = ShiftBlock(width, segments)
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
                                  nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True))
        self.stage2 = nn.Sequential(ShiftBlock(2 * width, segments), ShiftBlock(2 * width, segments))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, clips):
        b, t = clips.shape[:2]
        x = self.stage2(self.down(self.stage1(self.stem(clips.flatten(0, 1)))))
        x = x.mean((2, 3)).view(b, t, -1).mean(1)
        return self.fc(self.drop(x))


def forever(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--root", default=os.path.join(tempfile.gettempdir(), "clip_gestures_v1"))
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    torch.manual_seed(3)
    np.random.seed(3)

    ensure_recordings(args.root)
    data = GestureClips(args.root)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = ShiftNet(data.segments, len(GESTURES))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)
    batches = forever(loader)
    for step in range(1, args.steps + 1):
        clips, labels = next(batches)
        loss = F.cross_entropy(model(clips), labels, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        opt.step()
        sched.step()
        if step % args.log_every == 0:
            print(f"step {step:4d}  loss {loss.item():.5f}  lr {sched.get_last_lr()[0]:.5f}", flush=True)


if __name__ == "__main__":
    main()

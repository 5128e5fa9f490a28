"""Multi-label bird call detection on log-mel patches from long field recordings."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

N_SPECIES, N_MELS, FRAMES = 24, 48, 96


class FieldRecordings(Dataset):
    """Every start frame of every recording is one candidate patch."""

    def __init__(self, n_rec, n_frames, seed):
        rng = np.random.default_rng(seed)
        self.spec = rng.normal(0, 1, (n_rec, N_MELS, n_frames)).astype(np.float32)
        self.activity = np.zeros((n_rec, N_SPECIES, n_frames), bool)
        freq = np.zeros(N_SPECIES)
        for r in range(n_rec):
            for _ in range(n_frames // 60):
                s = min(int(rng.exponential(5)), N_SPECIES - 1)
                t, d = rng.integers(0, n_frames - 60), rng.integers(20, 60)
                band = slice(2 * s % (N_MELS - 4), 2 * s % (N_MELS - 4) + 4)
                self.spec[r, band, t:t + d] += 2.0
                self.activity[r, s, t:t + d] = True
                freq[s] += 1
        self.starts = n_frames - FRAMES
        self.rarity = 1.0 / np.sqrt(1 + freq)

    def __len__(self):
        return len(self.spec) * self.starts

    def sampling_weights(self):
        present = self.activity[:, :, FRAMES // 2:FRAMES // 2 + self.starts]
        w = 0.05 + np.einsum("rst,s->rt", present, self.rarity)
        return torch.from_numpy(w.reshape(-1))

    def __getitem__(self, i):
        r, t = divmod(i, self.starts)
        x = self.spec[r, :, t:t + FRAMES]
        y = self.activity[r, :, t:t + FRAMES].any(1)
        return torch.from_numpy(x[None].copy()), torch.from_numpy(y.astype(np.float32))


class SqueezeExcite(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(ch, ch // 4), nn.ReLU(), nn.Linear(ch // 4, ch), nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean((2, 3)))[:, :, None, None]


class CallNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        layers, c = [], 1
        for o in (w, 2 * w, 4 * w):
            layers += [nn.Conv2d(c, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), SqueezeExcite(o), nn.AvgPool2d(2)]
            c = o
        self.body = nn.Sequential(*layers)
        self.att = nn.Conv1d(c, N_SPECIES, 1)
        self.cla = nn.Conv1d(c, N_SPECIES, 1)

    def forward(self, x):
        h = self.body(x).mean(2)
        return (self.att(h).softmax(2) * self.cla(h)).sum(2)


def focal_bce(logits, y, gamma=2.0):
    ce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    p = torch.exp(-ce)
    return ((1 - p) ** gamma * ce).mean()


def spec_mask(x, width=12):
    """One time and one frequency stripe per batch."""
    t = int(torch.randint(0, FRAMES - width, ()))
    f = int(torch.randint(0, N_MELS - width // 2, ()))
    x[..., t:t + width] = 0
    x[..., f:f + width // 2, :] = 0
    return x


def train_one(model, batch, optimizer):
    x, y = batch
    logits = model(spec_mask(x))
    loss = focal_bce(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main(args):
    torch.manual_seed(args.seed)
    data = FieldRecordings(args.recordings, args.frames, args.seed)
    weights = data.sampling_weights()
    sampler = WeightedRandomSampler(weights, num_samples=len(weights), replacement=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = CallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    print(f"{len(data)} candidate patches, {sum(p.numel() for p in model.parameters())} parameters")
    history = []
    for it in range(1, args.steps + 1):
        history.append(train_one(model, next(iter(loader)), optimizer))
        schedule.step()
        if it % args.report == 0:
            print(f"it {it} loss {np.mean(history[-args.report:]):.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--recordings", type=int, default=16)
    parser.add_argument("--frames", type=int, default=12000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--report", type=int, default=15)
    parser.add_argument("--seed", type=int, default=2)
    main(parser.parse_args())

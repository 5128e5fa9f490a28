"""CRNN + CTC for reading synthetic serial-number strips."""
import itertools
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

ALPHABET = "0123456789ABCDEFGHJKLMNP"
BLANK = 0
HEIGHT, WIDTH = 24, 112


class StripDataset(Dataset):
    """Strips are rendered once and kept in memory; they are only 10 kB each."""

    def __init__(self, length, font_seed=4):
        rng = np.random.default_rng(font_seed)
        # random blocky glyphs, 5x7 pixels blown up to 10x14
        cells = (rng.random((len(ALPHABET), 7, 5)) < 0.5).astype(np.float32)
        self.glyphs = cells.repeat(2, axis=1).repeat(2, axis=2)
        self.samples = [self.render(rng) for _ in range(length)]

    def render(self, rng):
        n = int(rng.integers(5, 9))
        text = rng.integers(0, len(ALPHABET), n)
        strip = rng.standard_normal((HEIGHT, WIDTH), dtype=np.float32) * 0.12
        x = int(rng.integers(1, 8))
        for c in text:
            y = int(rng.integers(2, HEIGHT - 15))
            strip[y:y + 14, x:x + 10] += self.glyphs[c]
            x += 11 + int(rng.integers(0, 3))
        return torch.from_numpy(strip), torch.from_numpy(text) + 1

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def collate(samples):
    images = torch.stack([s for s, _ in samples]).unsqueeze(1)
    targets = torch.cat([t for _, t in samples])
    lengths = torch.tensor([len(t) for _, t in samples])
    return images, targets, lengths


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout))


class CRNN(nn.Module):
    def __init__(self, classes, hidden=96):
        super().__init__()
        self.features = nn.Sequential(
            conv(1, 24), nn.MaxPool2d(2), nn.ReLU(inplace=True),
            conv(24, 48), nn.MaxPool2d(2), nn.ReLU(inplace=True),
            conv(48, 96), nn.MaxPool2d((3, 1)), nn.ReLU(inplace=True),
        )
        self.squeeze = nn.Linear(96 * 2, hidden)
        self.rnn = nn.LSTM(hidden, hidden, bidirectional=True)
        self.classify = nn.Linear(2 * hidden, classes)

    def forward(self, images):
        f = self.features(images)                       # B, C, 2, T
        f = f.permute(3, 0, 1, 2).flatten(2)            # T, B, 2C
        h, _ = self.rnn(F.relu(self.squeeze(f)))
        return F.log_softmax(self.classify(h), dim=-1)


def greedy_decode(log_probs):
    best = log_probs.argmax(-1).T.tolist()
    out = []
    for path in best:
        chars, prev = [], BLANK
        for p in path:
            if p != prev and p != BLANK:
                chars.append(p)
            prev = p
        out.append(chars)
    return out


def exact_match(log_probs, targets, lengths):
    truth = [t.tolist() for t in targets.split(lengths.tolist())]
    hits = sum(a == b for a, b in zip(greedy_decode(log_probs), truth))
    return hits / len(truth)


def forever(loader):
    while True:
        yield from loader


def train(steps=150, batch_size=16, lr=2e-3, seed=0):
    torch.manual_seed(seed)
    loader = DataLoader(StripDataset(1200), batch_size=batch_size, shuffle=True, drop_last=True,
                        collate_fn=collate)
    model = CRNN(len(ALPHABET) + 1).to(memory_format=torch.channels_last)
    ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=steps)

    t0 = time.time()
    stream = itertools.islice(forever(loader), steps)
    for step, (images, targets, lengths) in enumerate(stream, 1):
        log_probs = model(images)
        frames = torch.full((images.shape[0],), log_probs.shape[0], dtype=torch.long)
        loss = ctc(log_probs, targets, frames, lengths)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 50 == 0:
            acc = exact_match(log_probs.detach(), targets, lengths)
            print(f"step {step:4d}  ctc {loss.item():.4f}  exact {acc:.3f}  {time.time() - t0:.1f}s")


if __name__ == "__main__":
    train()

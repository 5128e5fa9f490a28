"""Attention-based multiple-instance learning on whole-slide patch embeddings."""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn

FEATURES = 192
SUBTYPES = 3


class SlideCohort(torch.utils.data.Dataset):
    """Every slide is a bag with its own number of patch embeddings and one subtype label."""

    def __init__(self, n_slides, low, high, seed):
        rng = np.random.default_rng(seed)
        self.prototypes = rng.normal(0, 1.0, size=(SUBTYPES, FEATURES)).astype(np.float32)
        self.sizes = rng.integers(low, high, size=n_slides)
        self.labels = rng.integers(0, SUBTYPES, size=n_slides)
        self.pool = rng.standard_normal((high + 4000, FEATURES), dtype=np.float32)
        self.offsets = rng.integers(0, 4000, size=n_slides)
        self.seeds = rng.integers(0, 2 ** 31, size=n_slides)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        n = int(self.sizes[i])
        bag = self.pool[self.offsets[i]:self.offsets[i] + n].copy()
        rng = np.random.default_rng(self.seeds[i])
        tumour = rng.choice(n, size=max(1, n // 30), replace=False)
        bag[tumour] += 0.6 * self.prototypes[self.labels[i]]
        return torch.from_numpy(bag), int(self.labels[i])


class GatedPooling(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.value = nn.Linear(dim, inner)
        self.gate = nn.Linear(dim, inner)
        self.score = nn.Linear(inner, 1)

    def forward(self, h):
        a = self.score(torch.tanh(self.value(h)) * torch.sigmoid(self.gate(h)))
        w = torch.softmax(a, dim=0)
        return (w * h).sum(0), w


class SlideClassifier(nn.Module):
    def __init__(self, dim=96, inner=64, dropout=0.1):
        super().__init__()
        self.embed = nn.Sequential(
            nn.LayerNorm(FEATURES), nn.Linear(FEATURES, dim), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.pool = GatedPooling(dim, inner)
        self.head = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, SUBTYPES))

    def forward(self, bag):
        slide, w = self.pool(self.embed(bag))
        return self.head(slide), w


def collate(items):
    return [bag for bag, _ in items], torch.tensor([y for _, y in items])


def endless(loader):
    while True:
        for batch in loader:
            yield batch


def entropy_of(w):
    return float(-(w * (w + 1e-12).log()).sum() / math.log(len(w)))


def train_step(model, optimizer, criterion, bags, labels, reg):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    losses, correct, spread = [], 0, []
    for bag, label in zip(bags, labels):
        logits, w = model(bag)
        concentration = w.square().sum() * len(bag) / 1e3
        losses.append(criterion(logits[None], label[None]) + reg * concentration)
        correct += int(logits.argmax() == label)
        spread.append(entropy_of(w.detach()))
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return loss.item(), correct / len(bags), float(np.mean(spread)), float(norm)


@torch.no_grad()
def check(model, cohort, n):
    model.eval()
    right = sum(int(model(bag)[0].argmax()) == y for bag, y in (cohort[i] for i in range(n)))
    return right / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--slides-per-step", type=int, default=10)
    ap.add_argument("--min-patches", type=int, default=2000)
    ap.add_argument("--max-patches", type=int, default=5000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--reg", type=float, default=0.01)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=17)
    a = ap.parse_args()
    torch.manual_seed(a.seed)

    train = SlideCohort(240, a.min_patches, a.max_patches, a.seed)
    held_out = SlideCohort(24, a.min_patches, a.max_patches, a.seed)
    loader = torch.utils.data.DataLoader(train, batch_size=a.slides_per_step, shuffle=True,
                                         collate_fn=collate, drop_last=True)
    model = SlideClassifier()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a.steps)
    t0 = time.time()
    for step, (bags, labels) in enumerate(endless(loader), start=1):
        loss, acc, spread, norm = train_step(model, optimizer, criterion, bags, labels, a.reg)
        scheduler.step()
        if step % 10 == 0 or step == 1:
            print(f"{step:4d} loss {loss:.4f} acc {acc:.2f} attn-entropy {spread:.3f} "
                  f"grad {norm:.2f} t {time.time() - t0:.1f}")
        if step % a.eval_every == 0:
            print(f"     held-out accuracy {check(model, held_out, 6):.3f}")
        if step == a.steps:
            break


if __name__ == "__main__":
    main()

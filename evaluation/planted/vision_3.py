"""Flower image classification with brightness/contrast jitter."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.48, 0.45, 0.41])
STD = np.array([0.23, 0.22, 0.22])


class FlowerImages(Dataset):
    def __init__(self, n, size, dtype, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 5, n)
        tint = rng.uniform(40, 200, (5, 1, 1, 3))
        self.images = np.clip(tint[self.labels] + rng.normal(0, 40, (n, size, size, 3)), 0, 255).astype(np.uint8)
        self.dtype = dtype
        self.mean, self.std = MEAN.astype(dtype), STD.astype(dtype)

    def __len__(self):
        return len(self.labels)

    def jitter(self, img, rng):
        gain, shift, gamma = rng.uniform([0.8, -0.1, 0.8], [1.2, 0.1, 1.25]).astype(self.dtype)
        center = img.mean(dtype=self.dtype)
        img = np.clip((img - center) * gain + center + shift, 0, 1)
        return img ** gamma

    def __getitem__(self, i):
        rng = np.random.default_rng(1000 + i)
        img = self.images[i].astype(self.dtype) / self.dtype(255)
        img = self.jitter(img, rng)
        img = (img - self.mean) / self.std
        if rng.random() < 0.5:
            img = img[:, ::-1]
        x = torch.from_numpy(np.ascontiguousarray(img.transpose(2, 0, 1)))
        return x.float(), int(self.labels[i])


class FlowerNet(nn.Module):
    def __init__(self, n_class=5):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, 4, 2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.classifier = nn.Linear(32, n_class)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(211)
    data = FlowerImages(args.batch * args.steps, 112, np.float32 if args.fixed else np.float64)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    net = FlowerNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    hits, seen = 0.0, 0
    for step, (x, y) in enumerate(loader, 1):
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            hits += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            print(f"step {step} loss {loss.item():.5f} acc {hits / seen:.3f}")


if __name__ == "__main__":
    main()

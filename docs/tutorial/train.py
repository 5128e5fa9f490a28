"""Trains a small network on images from slow storage; each is read and normalised when it is asked for."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, SIDE = 200, 16, 32
READ_S = 0.004  # what a network disk takes to answer


class Images(Dataset):
    def __init__(self):
        self.stored = np.random.default_rng(0).integers(0, 256, (256, 3, SIDE, SIDE), dtype=np.uint8)

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        time.sleep(READ_S)
        image = self.stored[index % len(self.stored)].astype(np.float32)
        return torch.from_numpy(image / 128 - 1), index % 10


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(), batch_size=BATCH)
    start = time.perf_counter()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{1000 * (time.perf_counter() - start) / STEPS:.0f} ms a step, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

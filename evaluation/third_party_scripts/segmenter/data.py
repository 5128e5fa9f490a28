import math
import random

import torch
from torch.utils.data import Dataset


class Circles(Dataset):
    """Pictures of circles, drawn pixel by pixel when they are asked for."""

    def __init__(self, size, side=32, augment=True):
        self.size = size
        self.side = side
        self.augment = augment

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = random.Random(index)
        cx, cy, r = rng.uniform(8, 24), rng.uniform(8, 24), rng.uniform(3, 8)
        mask = draw_circle(self.side, cx, cy, r)
        image = mask + 0.1 * torch.randn_like(mask)
        if self.augment and rng.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image[None], mask[None]


def draw_circle(side, cx, cy, r):
    rows = []
    for y in range(side):
        rows.append([1.0 if math.hypot(x - cx, y - cy) < r else 0.0 for x in range(side)])
    return torch.tensor(rows)

"""Land-cover segmentation of multispectral patches cut from one large scene."""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BANDS, CLASSES, PATCH = 6, 7, 48
IGNORE = 255


def build_scene(side, seed):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, CLASSES, size=(side // 16, side // 16))
    labels = np.kron(coarse, np.ones((16, 16), dtype=np.int64)).astype(np.uint8)
    signature = rng.uniform(500, 4000, size=(CLASSES, BANDS))
    reflectance = signature[labels] + rng.normal(0, 900, size=(side, side, BANDS))
    reflectance = reflectance.clip(0, 10000).astype(np.uint16).transpose(2, 0, 1).copy()
    labels[rng.random(labels.shape) < 0.02] = IGNORE
    return reflectance, labels


class PatchSource:
    def __init__(self, scene, labels, seed):
        self.scene, self.labels = scene, labels
        stride = scene[:, ::8, ::8].reshape(BANDS, -1)
        self.mean = torch.from_numpy(stride.mean(axis=1).astype(np.float32)).view(BANDS, 1, 1)
        self.std = torch.from_numpy(stride.std(axis=1).astype(np.float32)).view(BANDS, 1, 1)
        self.rng = np.random.default_rng(seed)

    def batch(self, size):
        image = np.empty((size, BANDS, PATCH, PATCH), dtype=np.float32)
        label = np.empty((size, PATCH, PATCH), dtype=np.int64)
        corners = self.rng.integers(0, self.labels.shape[0] - PATCH, size=(size, 2))
        for i, (r, c) in enumerate(corners):
            image[i] = self.scene[:, r:r + PATCH, c:c + PATCH]
            label[i] = self.labels[r:r + PATCH, c:c + PATCH]
        image, label = torch.from_numpy(image), torch.from_numpy(label)
        turns = int(self.rng.integers(4))
        image = image.sub_(self.mean).div_(self.std)
        return torch.rot90(image, turns, (2, 3)).contiguous(), torch.rot90(label, turns, (1, 2))


def conv_unit(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False),
                         nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down1 = nn.Sequential(conv_unit(BANDS, width), conv_unit(width, width))
        self.down2 = nn.Sequential(conv_unit(width, 2 * width), conv_unit(2 * width, 2 * width))
        self.bottom = conv_unit(2 * width, 4 * width)
        self.up2 = conv_unit(6 * width, 2 * width)
        self.up1 = conv_unit(3 * width, width)
        self.classify = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.up2(torch.cat((F.interpolate(c, scale_factor=2), b), dim=1))
        a = self.up1(torch.cat((F.interpolate(b, scale_factor=2), a), dim=1))
        return self.classify(a)


@torch.inference_mode()
def mean_iou(model, image, label):
    model.eval()
    guess = model(image).argmax(1)
    keep = label != IGNORE
    table = torch.bincount(label[keep] * CLASSES + guess[keep], minlength=CLASSES ** 2)
    table = table.view(CLASSES, CLASSES).float()
    model.train()
    hit = table.diag()
    return (hit / (table.sum(0) + table.sum(1) - hit).clamp_min(1)).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(7)
    train_set = PatchSource(*build_scene(768, 1), seed=7)
    holdout = PatchSource(*build_scene(768, 1), seed=99).batch(8)
    model = SmallUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=40)
    running, spent = torch.zeros(()), 0.0
    for step in range(args.steps):
        tick = time.perf_counter()
        image, label = train_set.batch(4)
        loss = F.cross_entropy(model(image), label, ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        warmup.step()
        running.lerp_(loss.detach(), 0.05)
        if step >= 10:
            spent += time.perf_counter() - tick
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f} smooth {running.item():.4f}")
        if step % 100 == 99:
            print(f"step {step} mIoU {mean_iou(model, *holdout):.3f}")
    print(f"final loss {loss.item():.5f}")
    print(f"step_ms={1000 * spent / max(1, args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

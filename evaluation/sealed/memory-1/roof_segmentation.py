"""Roof-material segmentation on ten-band aerial tiles."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MATERIALS = ["ground", "clay", "slate", "metal", "bitumen", "glass", "vegetated"]


def paint_scene(rng, spectra, size):
    label = np.zeros((size, size), dtype=np.int64)
    for _ in range(rng.integers(4, 10)):
        h, w = rng.integers(10, 36, size=2)
        y, x = rng.integers(0, size - h), rng.integers(0, size - w)
        label[y:y + h, x:x + w] = rng.integers(1, len(MATERIALS))
    cube = spectra[label].transpose(2, 0, 1)
    shade = 1 + 0.2 * rng.standard_normal((1, size, size))
    return (cube * shade + 0.35 * rng.standard_normal(cube.shape)).astype(np.float32), label


class TileArchive(torch.utils.data.Dataset):
    def __init__(self, n_tiles, size, bands, seed):
        rng = np.random.default_rng(seed)
        spectra = rng.normal(0, 0.6, size=(len(MATERIALS), bands))
        pairs = [paint_scene(rng, spectra, size) for _ in range(n_tiles)]
        self.cubes = np.stack([p[0] for p in pairs])
        self.labels = np.stack([p[1] for p in pairs])

    def __len__(self):
        return len(self.cubes)

    def __getitem__(self, i):
        return torch.from_numpy(self.cubes[i]), torch.from_numpy(self.labels[i]), i


def conv_pair(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class RoofNet(nn.Module):
    def __init__(self, bands, classes, base=8):
        super().__init__()
        self.enter = nn.Conv2d(bands, base, 1)
        self.enc1, self.enc2, self.enc3 = conv_pair(base, base), conv_pair(base, 2 * base), conv_pair(2 * base, 4 * base)
        self.dec2, self.dec1 = conv_pair(6 * base, 2 * base), conv_pair(3 * base, base)
        self.out = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        a = self.enc1(self.enter(x))
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.enc3(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.dec1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.out(a)


class Gallery:
    """Picks the worst tile of every batch for the contact sheet that is written at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = []

    def add(self, step, tile_ids, cubes, logits, pixel_loss):
        per_tile = pixel_loss.detach().mean((1, 2))
        worst = int(per_tile.argmax())
        self.rows.append({
            "step": step,
            "tile": int(tile_ids[worst]),
            "loss": float(per_tile[worst]),
            "cube": cubes[worst],
            "logits": logits.detach()[worst],
        })

    def write(self):
        ranked = sorted(self.rows, key=lambda r: -r["loss"])
        path = os.path.join(self.folder, "contact_sheet.npz")
        np.savez(path,
                 tile=np.array([r["tile"] for r in ranked]),
                 loss=np.array([r["loss"] for r in ranked], dtype=np.float32),
                 thumb=np.stack([r["cube"][:3, ::4, ::4].numpy() for r in ranked]),
                 confidence=np.stack([r["logits"].softmax(0).amax(0)[::4, ::4].numpy() for r in ranked]))
        return path


def mean_iou(confusion):
    inter = confusion.diag()
    union = confusion.sum(0) + confusion.sum(1) - inter
    return (inter / union.clamp(min=1)).mean().item()


def main(args):
    torch.manual_seed(args.seed)
    archive = TileArchive(192, args.size, 10, args.seed)
    loader = torch.utils.data.DataLoader(archive, batch_size=args.batch_size, shuffle=True, drop_last=True)
    net = RoofNet(10, len(MATERIALS))
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=args.steps, power=0.9)
    frequency = torch.from_numpy(np.bincount(archive.labels.ravel(), minlength=len(MATERIALS))).float()
    weight = (frequency.sum() / frequency.clamp(min=1)).sqrt()
    weight /= weight.mean()

    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery(folder)
        confusion = torch.zeros(len(MATERIALS), len(MATERIALS))
        step, began = 0, time.time()
        while step < args.steps:
            for cubes, labels, ids in loader:
                logits = net(cubes)
                pixel_loss = F.cross_entropy(logits, labels, weight=weight, reduction="none")
                loss = pixel_loss.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                gallery.add(step, ids, cubes, logits, pixel_loss)
                guess = logits.detach().argmax(1)
                pairs = labels.flatten() * len(MATERIALS) + guess.flatten()
                confusion += torch.bincount(pairs, minlength=len(MATERIALS) ** 2).view_as(confusion)
                step += 1
                if step % args.log_every == 0:
                    print(f"{step:4d}/{args.steps} loss {loss.item():.4f} mIoU {mean_iou(confusion):.3f} "
                          f"({(time.time() - began) / step * 1e3:.0f} ms/step)")
                    confusion.zero_()
                if step == args.steps:
                    break
        path = gallery.write()
        print(f"contact sheet: {len(gallery.rows)} tiles, {os.path.getsize(path) // 1024} kB")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=10)
    ap.add_argument("--size", type=int, default=96)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    main(ap.parse_args())

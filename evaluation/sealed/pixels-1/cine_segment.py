"""Short-axis cardiac cine segmentation: background, LV cavity, myocardium, RV, scar."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

N_CLASSES = 5


def phantom(rng, size):
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32) / size - 0.5
    cx, cy = rng.uniform(-0.1, 0.1, 2)
    r = np.hypot(xx - cx, (yy - cy) * rng.uniform(0.85, 1.15))
    inner, outer = rng.uniform(0.07, 0.12), rng.uniform(0.15, 0.2)
    mask = np.zeros((size, size), np.uint8)
    mask[np.hypot(xx - cx + 0.2, yy - cy) < 0.13] = 3
    mask[r < outer] = 2
    mask[r < inner] = 1
    ang = np.arctan2(yy - cy, xx - cx)
    a0 = rng.uniform(-3, 3)
    mask[(mask == 2) & (np.abs(ang - a0) < 0.4)] = 4
    tissue = np.array([0.2, 0.9, 0.45, 0.85, 0.65], np.float32)
    img = tissue[mask] + 0.08 * np.cos(9 * xx + rng.uniform(0, 6)) + rng.normal(0, 0.06, mask.shape)
    return img.astype(np.float32), mask


class CineSlices(Dataset):
    def __init__(self, n, size, seed, augment):
        rng = np.random.default_rng(seed)
        pairs = [phantom(rng, size) for _ in range(n)]
        self.images = torch.from_numpy(np.stack([p[0] for p in pairs]))
        self.masks = torch.from_numpy(np.stack([p[1] for p in pairs]))
        self.augment = augment

    def __len__(self):
        return self.images.shape[0]

    def __getitem__(self, i):
        img, mask = self.images[i], self.masks[i]
        if self.augment:
            k = int(torch.randint(4, ()))
            img, mask = torch.rot90(img, k, (0, 1)), torch.rot90(mask, k, (0, 1))
            gain = 0.8 + 0.4 * torch.rand(())
            img = img * gain + 0.1 * torch.randn(())
        img = (img - img.mean()) / (img.std() + 1e-5)
        return img.unsqueeze(0), mask.long()


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.reduce = conv_bn(cin, cout, 2)
        self.refine = conv_bn(cout, cout)

    def forward(self, x):
        x = self.reduce(x)
        return x + self.refine(x)


class Pyramid(nn.Module):
    def __init__(self, widths=(24, 48, 64, 96)):
        super().__init__()
        dims = (1,) + widths
        self.stages = nn.ModuleList(Stage(a, b) for a, b in zip(dims[:-1], dims[1:]))

    def forward(self, x):
        outs = []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        return outs[1:]


class FusionDecoder(nn.Module):
    """Unify pyramid levels at the finest kept level, fuse, then label."""

    def __init__(self, widths, dim, classes):
        super().__init__()
        self.unify = nn.ModuleList(nn.Conv2d(w, dim, 1) for w in widths)
        self.fuse = conv_bn(dim, dim)
        self.drop = nn.Dropout2d(0.1)
        self.label = nn.Conv2d(dim, classes, 1)

    def forward(self, levels, out_size):
        base = levels[0].shape[-2:]
        first, *rest = [proj(f) for proj, f in zip(self.unify, levels)]
        for coarse in rest:
            first = first + F.interpolate(coarse, size=base, mode="bilinear", align_corners=False)
        y = self.drop(self.fuse(first))
        y = F.interpolate(y, size=out_size, mode="bilinear", align_corners=False)
        return self.label(y)


class CineNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.encoder = Pyramid()
        self.decoder = FusionDecoder((48, 64, 96), dim, N_CLASSES)

    def forward(self, x):
        return self.decoder(self.encoder(x), x.shape[-2:])


def dice_ce(logits, mask):
    logp = F.log_softmax(logits, 1)
    ce = F.nll_loss(logp, mask)
    prob = logp.exp()
    onehot = F.one_hot(mask, N_CLASSES).permute(0, 3, 1, 2).to(prob.dtype)
    inter = (prob * onehot).sum((0, 2, 3))
    total = prob.sum((0, 2, 3)) + onehot.sum((0, 2, 3))
    return ce + 1 - ((2 * inter + 1) / (total + 1))[1:].mean()


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    table = torch.zeros(N_CLASSES * N_CLASSES, dtype=torch.long)
    for img, mask in loader:
        pred = model(img).argmax(1)
        table += torch.bincount((mask * N_CLASSES + pred).flatten(), minlength=table.numel())
    model.train()
    table = table.view(N_CLASSES, N_CLASSES).float()
    return (2 * table.diag() / (table.sum(0) + table.sum(1)).clamp(min=1))[1:].mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--size", type=int, default=192)
    ap.add_argument("--val-every", type=int, default=30)
    args = ap.parse_args()
    torch.manual_seed(21)

    train_set = CineSlices(64, args.size, seed=1, augment=True)
    val_set = CineSlices(4, args.size, seed=2, augment=False)
    sampler = RandomSampler(train_set, replacement=True, num_samples=args.steps * args.batch)
    train_loader = DataLoader(train_set, args.batch, sampler=sampler)
    val_loader = DataLoader(val_set, 4)

    net = CineNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps, power=0.9)
    running = 0.0
    for step, (img, mask) in enumerate(train_loader, 1):
        loss = dice_ce(net(img), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        running += loss.item()
        if step % 10 == 0:
            print(f"iter {step:4d} | loss {running / 10:.5f}", flush=True)
            running = 0.0
        if step % args.val_every == 0:
            print(f"iter {step:4d} | val dice {validate(net, val_loader):.4f}", flush=True)


if __name__ == "__main__":
    main()

"""x2 super-resolution of leaf photographs with a content term from a texture network."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def leaf_photos(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.rand(n, 3, size // 16, size // 16, generator=g)
    img = F.interpolate(base, size=(size, size), mode="bicubic", align_corners=False)
    axis = torch.linspace(0, 1, size)
    freq = 20 + 60 * torch.rand(n, 1, 1, 1, generator=g)
    tilt = torch.rand(n, 1, 1, 1, generator=g) * 2 - 1
    veins = torch.sin(freq * (axis.view(1, 1, 1, -1) + tilt * axis.view(1, 1, -1, 1)))
    return (img * 0.7 + 0.15 * veins + 0.15).clamp(0, 1)


class LeafPairs(Dataset):
    def __init__(self, photos, crop, length, seed):
        self.photos, self.crop, self.length = photos, crop, length
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.length

    def __getitem__(self, _):
        n, _, h, w = self.photos.shape
        i = int(torch.randint(n, (), generator=self.gen))
        y = int(torch.randint(h - self.crop + 1, (), generator=self.gen))
        x = int(torch.randint(w - self.crop + 1, (), generator=self.gen))
        hr = self.photos[i, :, y:y + self.crop, x:x + self.crop]
        if torch.rand((), generator=self.gen) < 0.5:
            hr = hr.flip(-1)
        if torch.rand((), generator=self.gen) < 0.5:
            hr = hr.transpose(-1, -2)
        lr = F.interpolate(hr[None], scale_factor=0.5, mode="bicubic", antialias=True)[0]
        return lr.clamp(0, 1), hr.contiguous()


class TextureNet(nn.Module):
    """Classifier trained earlier on herbarium scans; only its trunk is used here."""

    def __init__(self, widths=(32, 64, 96), classes=40):
        super().__init__()
        self.stages = nn.ModuleList()
        cin = 3
        for w in widths:
            self.stages.append(nn.Sequential(nn.Conv2d(cin, w, 3, padding=1), nn.ReLU(),
                                             nn.Conv2d(w, w, 3, padding=1), nn.ReLU()))
            cin = w
        self.classify = nn.Linear(cin, classes)

    def trunk(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
            x = F.avg_pool2d(x, 2)
        return maps

    @classmethod
    def restore(cls, path):
        net = cls()
        if not os.path.exists(path):
            torch.save(net.state_dict(), path)
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()


class ContentLoss(nn.Module):
    def __init__(self, texture, weights=(0.2, 0.5, 1.0)):
        super().__init__()
        self.texture, self.weights = texture, weights
        self.register_buffer("mean", torch.tensor([0.45, 0.47, 0.41]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.23, 0.22, 0.22]).view(1, 3, 1, 1))

    def forward(self, sr, hr):
        with torch.no_grad():
            want = self.texture.trunk((hr - self.mean) / self.std)
        have = self.texture.trunk((sr - self.mean) / self.std)
        return sum(w * F.l1_loss(a, b) for w, a, b in zip(self.weights, have, want))


class ResidualGroup(nn.Module):
    def __init__(self, ch, depth):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(),
                                                  nn.Conv2d(ch, ch, 3, padding=1)) for _ in range(depth))
        self.tail = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        y = x
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return x + self.tail(y)


class Upscaler(nn.Module):
    def __init__(self, ch=32, depth=2):
        super().__init__()
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.body = ResidualGroup(ch, depth)
        self.lift = nn.Sequential(nn.Conv2d(ch, 4 * ch, 3, padding=1), nn.PixelShuffle(2))
        self.out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, lr):
        up = F.interpolate(lr, scale_factor=2, mode="bilinear", align_corners=False)
        return up + self.out(self.lift(self.body(self.head(lr))))


def psnr(sr, hr):
    return (-10 * torch.log10(F.mse_loss(sr.detach().clamp(0, 1), hr))).item()


class SuperResTrainer:
    def __init__(self, opts):
        self.opts = opts
        torch.manual_seed(opts.seed)
        photos = leaf_photos(24, 256, opts.seed)
        pairs = LeafPairs(photos, opts.crop, opts.steps * opts.batch, opts.seed)
        self.loader = DataLoader(pairs, batch_size=opts.batch)
        self.model = Upscaler()
        weights = os.path.join(tempfile.gettempdir(), "herbarium_texture_v2.pt")
        self.content = ContentLoss(TextureNet.restore(weights))
        self.optim = torch.optim.Adam(self.model.parameters(), lr=opts.lr, betas=(0.9, 0.99), fused=True)
        self.sched = torch.optim.lr_scheduler.MultiStepLR(self.optim, [opts.steps // 2, opts.steps * 3 // 4], 0.5)

    def fit(self):
        for it, (lr, hr) in enumerate(self.loader, start=1):
            sr = self.model(lr)
            pixel = F.l1_loss(sr, hr)
            content = self.content(sr, hr)
            loss = pixel + self.opts.content_weight * content
            self.optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            self.sched.step()
            if it % 10 == 0:
                print(f"{it:05d} pixel {pixel.item():.5f} content {content.item():.5f} "
                      f"psnr {psnr(sr, hr):.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--crop", type=int, default=80)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--content-weight", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=31)
    SuperResTrainer(parser.parse_args()).fit()

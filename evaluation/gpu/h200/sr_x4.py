"""x4 super-resolution: EDSR-style generator, pixel loss plus VGG feature loss."""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VGG_PLAN = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512]
TAPS = {8: 1.0, 15: 1.0, 22: 1.0}


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.add(x, self.b(F.relu(self.a(x), inplace=True)), alpha=0.1)


class Generator(nn.Module):
    def __init__(self, width, blocks, scale=4):
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(width) for _ in range(blocks)])
        self.tail = nn.Conv2d(width, 3 * scale * scale, 3, padding=1)
        self.scale = scale

    def forward(self, lr):
        x = self.head(lr)
        x = x + self.body(x)
        base = F.interpolate(lr, scale_factor=self.scale, mode="bilinear")
        return base + F.pixel_shuffle(self.tail(x), self.scale)


class FeatureLoss(nn.Module):
    """L1 distance between VGG-16 activations of the two images."""

    def __init__(self, divide=1, weights=None):
        super().__init__()
        layers, channels = [], 3
        for item in VGG_PLAN:
            if item == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(channels, item // divide, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)
            layers += [conv, nn.ReLU(inplace=True)]
            channels = item // divide
        self.features = nn.Sequential(*layers)
        if weights and os.path.exists(weights):
            self.features.load_state_dict(torch.load(weights, map_location="cpu"))
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def extract(self, image):
        x = (image - self.mean) / self.std
        x = x.contiguous(memory_format=torch.channels_last)
        taps = []
        for i, layer in enumerate(self.features):
            x = layer(x)
            if i in TAPS:
                taps.append(x)
        return taps

    def forward(self, sr, hr):
        pairs = zip(TAPS.values(), self.extract(sr), self.extract(hr))
        return sum(w * (a - b).abs().mean() for w, a, b in pairs)


def make_images(count, size, device):
    coarse = torch.rand(count, 3, size // 16, size // 16, device=device)
    fine = F.interpolate(coarse, size=(size, size), mode="bilinear")
    fine = fine + 0.05 * torch.randn_like(fine)
    return (fine.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).contiguous()


def sample_patches(images, batch, patch):
    device, side = images.device, images.size(1)
    which = torch.randint(len(images), (batch, 1, 1), device=device)
    span = torch.arange(patch, device=device)
    top = torch.randint(side - patch + 1, (batch, 1), device=device) + span
    left = torch.randint(side - patch + 1, (batch, 1), device=device) + span
    hr = images[which, top[:, :, None], left[:, None, :]]
    hr = hr.permute(0, 3, 1, 2).float().div_(255)
    return F.avg_pool2d(hr, 4), hr


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--small", action="store_true")
    p.add_argument("--vgg-weights", default=None)
    return p.parse_args()


def train(args):
    torch.manual_seed(3)
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    width, blocks, batch, patch = (16, 2, 2, 32) if args.small else (128, 16, 32, 256)
    images = make_images(4 if args.small else 128, 64 if args.small else 512, device)

    net = Generator(width, blocks).to(device, memory_format=torch.channels_last)
    feature_loss = FeatureLoss(divide=8 if args.small else 1, weights=args.vgg_weights)
    feature_loss = feature_loss.to(device, memory_format=torch.channels_last).eval()
    if args.fixed:
        feature_loss.requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.9, 0.99), fused=True)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[50000, 100000], gamma=0.5)

    start = None
    for step in range(args.steps):
        if step == 10:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        lr, hr = sample_patches(images, batch, patch)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            sr = net(lr)
            pixel = (sr - hr).abs().mean()
            loss = pixel + 0.1 * feature_loss(sr, hr)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"iter {step}: loss={loss.item():.6f}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    if start is not None:
        print(f"step_ms={(time.perf_counter() - start) * 1e3 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    train(parse())

"""Pixel-space DDPM on 64x64 procedural sprites: convolutional U-Net, epsilon prediction, EMA weights."""
import argparse
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNorm2d(nn.Module):
    """LayerNorm over the channel axis of an NCHW feature map."""

    def __init__(self, channels, eps=1e-6, native=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps, self.native = eps, native

    def forward(self, x):
        if self.native:
            y = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, self.eps)
            return y.permute(0, 3, 1, 2)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ResBlock(nn.Module):
    def __init__(self, channels, temb_dim, native):
        super().__init__()
        self.norm1 = LayerNorm2d(channels, native=native)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.temb = nn.Linear(temb_dim, channels)
        self.norm2 = LayerNorm2d(channels, native=native)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.bias)
        nn.init.normal_(self.conv2.weight, std=1e-3)

    def forward(self, x, temb):
        h = self.conv1(self.norm1(x))
        h = h + self.temb(temb)[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return x + h


class UNet(nn.Module):
    def __init__(self, widths, blocks, native):
        super().__init__()
        self.freq_dim = widths[0]
        dim = 4 * widths[0]
        self.time_mlp = nn.Sequential(nn.Linear(self.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        stage = lambda w: nn.ModuleList(ResBlock(w, dim, native) for _ in range(blocks))
        self.down = nn.ModuleList(stage(w) for w in widths[:-1])
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.middle = stage(widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(stage(w) for w in widths[:-1])
        self.head = nn.Conv2d(widths[0], 3, 3, padding=1)
        freqs = torch.exp(-math.log(10000.0) * torch.arange(self.freq_dim // 2) / (self.freq_dim // 2))
        self.register_buffer("freqs", freqs)

    def forward(self, x, t):
        angles = t[:, None].float() * self.freqs[None]
        temb = self.time_mlp(torch.cat([angles.sin(), angles.cos()], dim=1))
        h, skips = self.stem(x), []
        for stage, shrink in zip(self.down, self.shrink):
            for block in stage:
                h = block(h, temb)
            skips.append(h)
            h = shrink(h)
        for block in self.middle:
            h = block(h, temb)
        for stage, grow, skip in zip(reversed(self.up), reversed(self.grow), reversed(skips)):
            h = grow(h) + skip
            for block in stage:
                h = block(h, temb)
        return self.head(F.silu(h))


def make_sprites(count, size, device):
    """Soft coloured discs on a coloured background, in [-1, 1]."""
    axis = torch.linspace(-1, 1, size, device=device)
    yy, xx = axis[None, :, None], axis[None, None, :]
    centre = torch.rand(count, 2, device=device) - 0.5
    radius = 0.2 + 0.4 * torch.rand(count, 1, 1, device=device)
    dist = ((yy - centre[:, :1, None]) ** 2 + (xx - centre[:, 1:, None]) ** 2).sqrt()
    mask = torch.sigmoid(20 * (radius - dist))[:, None]
    ink, paper = (torch.rand(2, count, 3, 1, 1, device=device) * 2 - 1).unbind(0)
    return (mask * ink + (1 - mask) * paper).contiguous(memory_format=torch.channels_last)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(3)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    widths, blocks, batch, size, count = [192, 384, 768], 2, 64, 64, 4096
    if args.small:
        widths, blocks, batch, size, count = [16, 32], 1, 4, 16, 32

    images = make_sprites(count, size, device)
    alpha_bar = torch.cos(torch.linspace(0, 0.995, 1000, device=device) * math.pi / 2) ** 2
    model = UNet(widths, blocks, native=args.fixed).to(device, memory_format=torch.channels_last)
    ema = copy.deepcopy(model).requires_grad_(False)
    params, ema_params = list(model.parameters()), list(ema.parameters())
    optimizer = torch.optim.AdamW(params, lr=2e-4, weight_decay=0.01, fused=True)

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    start = None
    for step in range(args.steps):
        if step == 10:
            sync()
            start = time.perf_counter()
        x0 = images[torch.randint(count, (batch,), device=device)]
        t = torch.randint(1000, (batch,), device=device)
        noise = torch.randn_like(x0)
        a = alpha_bar[t][:, None, None, None]
        noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            pred = model(noisy, t)
        loss = F.mse_loss(pred.float(), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(ema_params, params, 1e-3)
        if (step + 1) % 20 == 0 or step + 1 == args.steps:
            print(f"step {step + 1} loss {loss.item():.5f}", flush=True)
    sync()
    if start is not None:
        print(f"step_ms={(time.perf_counter() - start) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

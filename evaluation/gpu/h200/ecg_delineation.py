"""Sample-wise delineation of 12-lead ECGs (10.24 s at 1 kHz) with a global-convolution network."""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

WAVES = 4  # baseline, P, QRS, T


def smooth_length(n):
    """Smallest length >= n whose only prime factors are 2, 3 and 5."""
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1


class GlobalConv(nn.Module):
    """Causal per-channel convolution whose filter is as long as the recording."""

    def __init__(self, channels, length, smooth):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(channels, length) / math.sqrt(length))
        self.skip = nn.Parameter(torch.ones(channels, 1))
        rate = torch.logspace(-0.5, 2.0, channels).unsqueeze(1)
        self.register_buffer("decay", torch.exp(-rate * torch.linspace(0, 1, length)))
        taps = self.filter.shape[-1]
        self.padded = length + taps - 1
        if smooth:
            self.padded = smooth_length(self.padded)

    def forward(self, u):
        length = u.shape[-1]
        spectrum = torch.fft.rfft(u, n=self.padded)
        response = torch.fft.rfft(self.filter * self.decay, n=self.padded)
        y = torch.fft.irfft(spectrum * response, n=self.padded)[..., :length]
        return torch.addcmul(y, u, self.skip)


class Layer(nn.Module):
    def __init__(self, channels, length, smooth):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.conv = GlobalConv(channels, length, smooth)
        self.gate = nn.Linear(channels, 2 * channels)
        self.norm_mlp = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * channels, channels))

    def forward(self, x):
        u = self.norm(x).transpose(1, 2).float().contiguous()
        y = self.conv(u).transpose(1, 2).to(x.dtype)
        x = x + F.glu(self.gate(y), dim=-1)
        return x + self.mlp(self.norm_mlp(x))


class Delineator(nn.Module):
    def __init__(self, leads, channels, depth, length, smooth):
        super().__init__()
        self.lift = nn.Linear(leads, channels)
        self.layers = nn.Sequential(*[Layer(channels, length, smooth) for _ in range(depth)])
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, WAVES)

    def forward(self, ecg):
        return self.head(self.norm(self.layers(self.lift(ecg))))


def synthetic_recordings(count, length, leads, device):
    """Noisy multi-lead recordings [count, length, leads] and wave labels [count, length]."""
    gen = torch.Generator(device=device).manual_seed(5)
    seconds = torch.linspace(0, 10.24, length, device=device)
    pulse = 0.9 + 0.8 * torch.rand(count, 1, generator=gen, device=device)
    offset = torch.rand(count, 1, generator=gen, device=device)
    beat = (seconds * pulse + offset) % 1.0
    labels = torch.zeros(count, length, dtype=torch.long, device=device)
    trace = torch.zeros(count, length, device=device)
    for wave, (centre, width, height) in enumerate([(0.2, 0.03, 0.15), (0.36, 0.015, 1.0), (0.62, 0.05, 0.3)], 1):
        distance = (beat - centre) / width
        trace += height * torch.exp(-0.5 * distance ** 2)
        labels[distance.abs() < 2] = wave
    projection = torch.randn(count, 1, leads, generator=gen, device=device)
    noise = torch.randn(count, length, leads, generator=gen, device=device)
    return trace.unsqueeze(-1) * projection + 0.1 * noise, labels


def build_optimizer(model, lr):
    filters = [p for name, p in model.named_parameters() if name.endswith("filter")]
    others = [p for name, p in model.named_parameters() if not name.endswith("filter")]
    groups = [{"params": filters, "weight_decay": 0.0, "lr": lr * 0.2}, {"params": others, "weight_decay": 0.01}]
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    if args.small:
        length, channels, depth, batch, count = 100, 16, 2, 4, 16
    else:
        length, channels, depth, batch, count = 10_240, 256, 5, 8, 256
    leads = 12
    ecgs, labels = synthetic_recordings(count, length, leads, args.device)
    model = Delineator(leads, channels, depth, length, smooth=args.fixed).to(args.device)
    optimizer = build_optimizer(model, lr=1e-3)

    def step():
        pick = torch.randint(count, (batch,), device=args.device)
        with torch.autocast(args.device, dtype=torch.bfloat16):
            logits = model(ecgs.index_select(0, pick))
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.index_select(0, pick).flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def clock():
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    began = None
    for i in range(args.steps):
        if i == 10:
            began = clock()
        loss = step()
        if (i + 1) % 20 == 0:
            print(f"{i + 1:6d}  loss {float(loss):.4f}")
    if began is not None:
        print(f"step_ms={1000 * (clock() - began) / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

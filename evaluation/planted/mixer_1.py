"""MLP-Mixer for small images."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ChannelNorm(nn.Module):
    def __init__(self, dim, eps=1e-5, native=False):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps, self.native = eps, native

    def forward(self, x):
        if self.native:
            return F.layer_norm(x, x.shape[-1:], self.g, self.b, self.eps)
        mu = x.mean(-1, keepdim=True)
        var = (x - mu).pow(2).mean(-1, keepdim=True)
        return (x - mu) / torch.sqrt(var + self.eps) * self.g + self.b


def mlp(n, hidden):
    return nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, n))


class MixBlock(nn.Module):
    def __init__(self, tokens, dim, native):
        super().__init__()
        self.n1, self.n2 = ChannelNorm(dim, native=native), ChannelNorm(dim, native=native)
        self.tok, self.ch = mlp(tokens, tokens // 2), mlp(dim, 2 * dim)

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, size=32, patch=4, dim=64, depth=3, n_class=10, native=False):
        super().__init__()
        n_tok = (size // patch) ** 2
        self.stem = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.Sequential(*[MixBlock(n_tok, dim, native) for _ in range(depth)])
        self.norm = ChannelNorm(dim, native=native)
        self.head = nn.Linear(dim, n_class)

    def forward(self, img):
        x = self.stem(img).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class Patches:
    """Synthetic ten class images; a class is a spatial frequency."""

    def __init__(self, n=500):
        self.y = torch.randint(0, 10, (n,))
        t = torch.linspace(0, 6.283, 32)
        wave = torch.sin(t * (1 + self.y[:, None]))
        self.x = wave[:, None, None, :] + 0.5 * torch.randn(n, 3, 32, 32)

    def batches(self, size, steps, gen):
        for _ in range(steps):
            i = torch.randint(0, len(self.y), (size,), generator=gen)
            yield self.x[i], self.y[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(131)
    data, net = Patches(), Mixer(native=args.fixed)
    gen = torch.Generator().manual_seed(132)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05, fused=True)
    avg = 0.0
    for step, (x, y) in enumerate(data.batches(24, args.steps, gen), 1):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            avg = loss.item()
            print(f"step {step} loss {avg:.5f}")


if __name__ == "__main__":
    main()

"""Dilated causal convolutions with quantile loss for electricity load."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class CausalBlock(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, 3, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return x + self.mix(F.glu(self.conv(F.pad(x, (self.pad, 0))), 1))


class LoadTCN(nn.Module):
    def __init__(self, n_in, ch=40, depth=4, n_quantiles=3):
        super().__init__()
        self.inp = nn.Conv1d(n_in, ch, 1)
        self.blocks = nn.Sequential(*[CausalBlock(ch, 2 ** k) for k in range(depth)])
        self.out = nn.Conv1d(ch, n_quantiles, 1)

    def forward(self, x):
        return self.out(F.relu(self.blocks(self.inp(x))))


class PinballLoss(nn.Module):
    def __init__(self, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.register_buffer("q", torch.tensor(quantiles).view(1, -1, 1))

    def forward(self, pred, target):
        err = target.unsqueeze(1) - pred
        return torch.maximum(self.q * err, (self.q - 1) * err).mean()


def load_series(n_series, length):
    t = torch.arange(length).float()
    daily = torch.sin(6.283 * t / 24 + 6.283 * torch.rand(n_series, 1))
    weekly = torch.cos(6.283 * t / 168)
    y = daily + 0.4 * weekly + 0.15 * torch.randn(n_series, length)
    calendar = torch.stack([torch.sin(6.283 * t / 24), torch.cos(6.283 * t / 24), weekly])
    return y, calendar


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(337)
    y, calendar = load_series(64, 1200)
    net, crit = LoadTCN(4), PinballLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, 8, 0.7)
    for step in range(args.steps):
        lo = int(torch.randint(0, 1000, ()))
        rows = torch.randint(0, 64, (12,))
        window = y[rows, lo:lo + 169]
        cal = calendar[:, lo:lo + 168].expand(12, -1, -1)
        loss = crit(net(torch.cat([window[:, None, :-1], cal], 1)), window[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 5 == 0:
            print(f"step {step} pinball {loss.item():.5f}")


if __name__ == "__main__":
    main()

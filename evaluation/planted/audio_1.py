"""Bird-call classification with a stack of diagonal state-space layers."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class DiagonalSSM(nn.Module):
    def __init__(self, dim, convolve=False):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1.0, 4.0, dim))
        self.gain = nn.Parameter(torch.randn(dim) * 0.5)
        self.skip = nn.Parameter(torch.ones(dim))
        self.convolve = convolve

    def scan(self, u):
        a = torch.sigmoid(self.decay)
        state, ys = torch.zeros_like(u[:, 0]), []
        for t in range(u.shape[1]):
            state = a * state + u[:, t]
            ys.append(state)
        return torch.stack(ys, 1)

    def kernel_conv(self, u):
        n = u.shape[1]
        k = torch.exp(F.logsigmoid(self.decay) * torch.arange(n).unsqueeze(-1))
        spec = torch.fft.rfft(u, n=2 * n, dim=1) * torch.fft.rfft(k, n=2 * n, dim=0)
        return torch.fft.irfft(spec, n=2 * n, dim=1)[:, :n]

    def forward(self, u):
        y = self.kernel_conv(u) if self.convolve else self.scan(u)
        return self.gain * y + self.skip * u


class SSMBlock(nn.Module):
    def __init__(self, dim, convolve):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ssm = DiagonalSSM(dim, convolve)
        self.glu = nn.Linear(dim, 2 * dim)

    def forward(self, x):
        return x + F.glu(self.glu(F.gelu(self.ssm(self.norm(x)))), -1)


def build(dim, depth, n_class, convolve):
    blocks = [SSMBlock(dim, convolve) for _ in range(depth)]
    return nn.ModuleDict({"inp": nn.Linear(16, dim), "body": nn.Sequential(*blocks), "out": nn.Linear(dim, n_class)})


def classify(net, x):
    return net["out"](net["body"](net["inp"](x)).mean(1))


def calls(n, length):
    y = torch.randint(0, 8, (n,))
    t = torch.arange(length).float()
    f = 0.05 + 0.04 * y.float()[:, None, None]
    chans = torch.arange(16).float()[None, None]
    x = torch.sin(f * t[None, :, None] * (1 + 0.1 * chans)) + 0.2 * torch.randn(n, length, 16)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(29)
    x, y = calls(256, 160)
    net = build(48, 2, 8, args.fixed)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=args.steps + 1)
    for step in range(args.steps):
        i = torch.randint(0, 256, (6,))
        loss = F.cross_entropy(classify(net, x[i]), y[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()

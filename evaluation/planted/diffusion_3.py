"""Class-conditional diffusion with classifier-free dropout of the label and weight EMA."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class CondConv(nn.Module):
    def __init__(self, a, b, cond, stride=1):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(a, b, 3, stride, 1), nn.GroupNorm(4, b)
        self.mod = nn.Linear(cond, 2 * b)

    def forward(self, x, c):
        scale, shift = self.mod(c)[:, :, None, None].chunk(2, 1)
        return F.silu(torch.addcmul(shift, self.norm(self.conv(x)), 1 + scale))


class UNet(nn.Module):
    def __init__(self, ch=16, cond=48, n_class=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(24, cond), nn.SiLU(), nn.Linear(cond, cond))
        self.label = nn.Embedding(n_class + 1, cond)
        self.a, self.b = CondConv(3, ch, cond), CondConv(ch, 2 * ch, cond, 2)
        self.mid = CondConv(2 * ch, 2 * ch, cond)
        self.up, self.c = nn.ConvTranspose2d(2 * ch, ch, 2, 2), CondConv(2 * ch, ch, cond)
        self.out = nn.Conv2d(ch, 3, 3, padding=1)
        self.register_buffer("freq", torch.logspace(0, -3, 12))

    def forward(self, x, t, label):
        ang = t[:, None] * self.freq
        c = self.time(torch.cat([ang.sin(), ang.cos()], 1)) + self.label(label)
        h = self.a(x, c)
        u = self.up(self.mid(self.b(h, c), c))
        return self.out(self.c(torch.cat([h, u], 1), c))


class Diffusion:
    def __init__(self, T=300):
        self.T = T
        abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0)
        self.s, self.n = abar.sqrt(), (1 - abar).sqrt()

    def noisy(self, x0):
        t = torch.randint(0, self.T, (len(x0),))
        eps = torch.randn_like(x0)
        return self.s[t].view(-1, 1, 1, 1) * x0 + self.n[t].view(-1, 1, 1, 1) * eps, t.float(), eps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(313)
    y = torch.randint(0, 8, (400,))
    x = torch.tanh(torch.randn(8, 3, 24, 24)[y] + 0.3 * torch.randn(400, 3, 24, 24))
    net, diff = UNet(), Diffusion()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    live = list(net.parameters())
    ema = [p.detach().clone() for p in live]
    for step in range(args.steps):
        i = torch.randint(0, 400, (12,))
        label = torch.where(torch.rand(12) < 0.1, 8, y[i])
        xt, t, eps = diff.noisy(x[i])
        loss = F.mse_loss(net(xt, t, label), eps)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(live, 1.0)
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(ema, live, 0.01)
        if step % 5 == 4:
            print(f"step {step + 1} eps mse {loss.item():.5f}")


if __name__ == "__main__":
    main()

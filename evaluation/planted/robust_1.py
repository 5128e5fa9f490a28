"""Adversarial training: one signed-gradient attack step, then training on the attacked batch."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, ch=20, n_class=8):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * ch, 2 * ch, 3, 1, 1), nn.ReLU(),
        )
        self.fc = nn.Linear(2 * ch, n_class)

    def forward(self, x):
        return self.fc(self.f(x).mean((2, 3)))


class SignedGradient:
    def __init__(self, net, eps):
        self.net, self.eps = net, eps

    def __call__(self, x, y):
        delta = torch.empty_like(x).uniform_(-self.eps, self.eps)
        x_adv = (x + delta).requires_grad_()
        loss = F.cross_entropy(self.net(x_adv), y, reduction="sum")
        grad, = torch.autograd.grad(loss, x_adv)
        with torch.no_grad():
            moved = delta.add_(grad.sign_(), alpha=1.25 * self.eps).clamp_(-self.eps, self.eps)
            return x + moved


def accuracy(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


def make_data(n=500):
    y = torch.randint(0, 8, (n,))
    return torch.randn(8, 3, 28, 28)[y] * 0.5 + torch.randn(n, 3, 28, 28) * 0.6, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--eps", type=float, default=0.06)
    args = ap.parse_args()
    torch.manual_seed(397)
    x, y = make_data()
    net = Net()
    attack = SignedGradient(net, args.eps)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, 440, (24,))
        xb, yb = x[rows], y[rows]
        loss = F.cross_entropy(net(attack(xb, yb)), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            clean = accuracy(net, x[440:], y[440:])
            hard = accuracy(net, attack(x[440:], y[440:]), y[440:])
            print(f"step {step} loss {loss.item():.5f} clean {clean:.3f} attacked {hard:.3f}")


if __name__ == "__main__":
    main()

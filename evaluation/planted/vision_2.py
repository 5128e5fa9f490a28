"""Small residual network with activation monitoring for dead units."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(ch), nn.BatchNorm2d(ch)

    def forward(self, x):
        return F.relu(x + self.bn2(self.c2(F.relu(self.bn1(self.c1(x))))))


class SmallResNet(nn.Module):
    def __init__(self, ch=24, depth=2, n_class=10):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, 2, 1)
        self.blocks = nn.Sequential(*[ResBlock(ch) for _ in range(depth)])
        self.fc = nn.Linear(ch, n_class)

    def forward(self, x):
        return self.fc(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class ActivationMonitor:
    def __init__(self, model, once):
        self.model, self.once, self.armed = model, once, False
        self.stats = {}

    def _record(self, name):
        def hook(_module, _inputs, out):
            act = out.detach()
            self.stats[name] = ((act <= 0).float().mean(), act.std())
        return hook

    def watch(self):
        if self.once and self.armed:
            return
        for name, module in self.model.named_modules():
            if isinstance(module, ResBlock):
                module.register_forward_hook(self._record(name))
        self.armed = True

    def summary(self):
        return " ".join(f"{k} off {z.item():.4f} std {s.item():.4f}" for k, (z, s) in self.stats.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(157)
    y = torch.randint(0, 10, (400,))
    x = torch.randn(400, 3, 32, 32) + torch.randn(10, 3, 1, 1)[y]
    net = SmallResNet()
    monitor = ActivationMonitor(net, once=args.fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(args.steps):
        monitor.watch()
        i = torch.randint(0, 400, (32,))
        loss = F.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step + 1} loss {loss.item():.5f} {monitor.summary()}")


if __name__ == "__main__":
    main()

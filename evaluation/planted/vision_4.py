"""CNN image classification: random crops, weight EMA, cosine schedule, periodic evaluation."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ConvNet(nn.Module):
    def __init__(self, n_class=10, ch=24):
        super().__init__()
        def stage(a, b, s):
            return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        self.body = nn.Sequential(stage(3, ch, 1), stage(ch, ch, 2), stage(ch, 2 * ch, 1), stage(2 * ch, 2 * ch, 2))
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(2 * ch, n_class)

    def forward(self, x):
        return self.fc(self.drop(self.body(x).mean((2, 3))))


class EMA:
    def __init__(self, net, decay=0.95):
        self.decay = decay
        self.live = list(net.parameters())
        self.avg = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.avg, self.live, 1 - self.decay)

    @torch.no_grad()
    def swap(self):
        for a, p in zip(self.avg, self.live):
            tmp = p.clone()
            p.copy_(a)
            a.copy_(tmp)


def random_crop(x, pad=2):
    size = x.shape[-1]
    x = F.pad(x, (pad,) * 4)
    dy, dx = torch.randint(0, 2 * pad + 1, (2,)).tolist()
    return x[..., dy:dy + size, dx:dx + size]


@torch.no_grad()
def evaluate(net, x, y):
    net.eval()
    acc = (net(x).argmax(1) == y).float().mean().item()
    net.train()
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(301)
    y = torch.randint(0, 10, (600,))
    x = torch.randn(600, 3, 24, 24) + 0.6 * torch.randn(10, 3, 24, 24)[y]
    net = ConvNet()
    ema = EMA(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 536, (32,))
        loss = F.cross_entropy(net(random_crop(x[i])), y[i], label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        ema.update()
        if step % 10 == 0:
            ema.swap()
            acc = evaluate(net, x[536:], y[536:])
            ema.swap()
            print(f"step {step} loss {loss.item():.5f} ema acc {acc:.3f}")


if __name__ == "__main__":
    main()

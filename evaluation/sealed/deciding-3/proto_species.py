"""Prototypical networks for bird-call species from log-mel patches."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

MELS, FRAMES = 32, 48


class CallBank:
    """Pre-rendered calls, a fixed number per species, as one tensor (species, calls, mels, frames)."""

    def __init__(self, species, calls=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        f = torch.arange(MELS)[:, None]
        t = torch.linspace(0, 1, FRAMES)[None]
        base = torch.rand(species, 1, 1, 1, generator=g) * 20 + 4
        sweep = torch.randn(species, 1, 1, 1, generator=g) * 8
        trill = torch.rand(species, 1, 1, 1, generator=g) * 8 + 1
        shift = torch.rand(species, calls, 1, 1, generator=g)
        ridge = base + sweep * t + 2 * torch.sin(6.283 * trill * (t + shift))
        self.x = torch.exp(-0.2 * (f - ridge) ** 2) + 0.3 * torch.randn(species, calls, MELS, FRAMES, generator=g)
        self.g = g

    def episode(self, ways, shots, queries):
        species, calls = self.x.shape[:2]
        who = torch.randperm(species, generator=self.g)[:ways]
        which = torch.rand(ways, calls, generator=self.g).argsort(1)[:, : shots + queries]
        x = self.x[who[:, None], which]
        return x[:, :shots].flatten(0, 1), x[:, shots:].flatten(0, 1)


class ConvBlock(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.MaxPool2d(2), nn.ReLU(inplace=True))


class CallEncoder(nn.Module):
    def __init__(self, c=32, out=96):
        super().__init__()
        self.body = nn.Sequential(ConvBlock(1, c), ConvBlock(c, 2 * c), ConvBlock(2 * c, 2 * c))
        self.proj = nn.Linear(2 * c * (MELS // 8) * (FRAMES // 8), out)

    def forward(self, x):
        return self.proj(self.body(x[:, None].contiguous(memory_format=torch.channels_last)).flatten(1))


class ProtoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = CallEncoder()
        self.log_scale = nn.Parameter(torch.tensor(-2.0))

    def forward(self, support, query, ways):
        z = self.encoder(torch.cat([support, query]))
        zs, zq = z[: len(support)], z[len(support):]
        proto = zs.view(ways, -1, zs.shape[-1]).mean(1)
        return -torch.cdist(zq, proto).square() * self.log_scale.exp()


def episode_loss(net, bank, args):
    support, query = bank.episode(args.ways, args.shots, args.queries)
    logits = net(support, query, args.ways)
    y = torch.arange(args.ways).repeat_interleave(args.queries)
    return F.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--ways", type=int, default=8)
    ap.add_argument("--shots", type=int, default=3)
    ap.add_argument("--queries", type=int, default=5)
    args = ap.parse_args()
    torch.manual_seed(13)
    train, test = CallBank(80, seed=1), CallBank(16, seed=2)
    net = ProtoNet().to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, 25, 0.5)
    smooth = None
    for step in range(1, args.steps + 1):
        loss, acc = episode_loss(net, train, args)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        smooth = acc.item() if smooth is None else 0.9 * smooth + 0.1 * acc.item()
        if step % 10 == 0:
            print(f"episode {step} loss {loss.item():.4f} acc {smooth:.3f}")
        if step % 60 == 0:
            net.eval()
            with torch.no_grad():
                scores = [episode_loss(net, test, args)[1].item() for _ in range(2)]
            net.train()
            print(f"  new species acc {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()

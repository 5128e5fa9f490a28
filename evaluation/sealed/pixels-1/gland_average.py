"""Gland grading on stained tissue tiles; weight averaging over the tail of training."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel

GRADES = 4


def make_tiles(n, size, gen):
    grade = torch.randint(GRADES, (n,), generator=gen)
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    tiles = torch.zeros(n, 3, size, size)
    pink = torch.tensor([0.85, 0.6, 0.75]).view(1, 3, 1, 1)
    for ring in range(6):
        c = torch.rand(n, 2, 1, 1, generator=gen) * 1.6 - 0.8
        r = ((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2).sqrt()
        radius = 0.12 + 0.05 * grade.view(-1, 1, 1)
        tiles += torch.exp(-((r - radius) / 0.04) ** 2).unsqueeze(1) * (0.3 if ring % 2 else 0.45)
    stain = 1 + 0.1 * torch.randn(n, 3, 1, 1, generator=gen)
    tiles = pink * stain - tiles + 0.05 * torch.randn(tiles.shape, generator=gen)
    return tiles.mul(255).clamp(0, 255).to(torch.uint8), grade


class TileBank:
    def __init__(self, n, size, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.tiles, self.grade = make_tiles(n, size, self.gen)

    @staticmethod
    def to_input(raw):
        return raw.float().div_(127.5).sub_(1)

    def draw(self, k):
        pick = torch.randint(self.tiles.shape[0], (k,), generator=self.gen)
        x = self.to_input(self.tiles[pick])
        if torch.rand((), generator=self.gen) < 0.5:
            x = x.flip(-1)
        x = torch.rot90(x, int(torch.randint(4, (), generator=self.gen)), (2, 3))
        gain = 1 + 0.1 * torch.randn(k, 3, 1, 1, generator=self.gen)
        return x * gain, self.grade[pick]

    def ordered(self, k):
        for lo in range(0, self.tiles.shape[0], k):
            yield self.to_input(self.tiles[lo:lo + k]), self.grade[lo:lo + k]


class Bottleneck(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        mid = cout // 2
        self.main = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout))
        self.short = nn.Sequential(nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                                   nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        return F.relu(self.main(x) + self.short(x))


class GlandNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.body = nn.Sequential(Bottleneck(32, 64, 2), Bottleneck(64, 96, 1),
                                  Bottleneck(96, 128, 2), Bottleneck(128, 160, 1))
        self.grade = nn.Linear(160, GRADES)

    def forward(self, x):
        return self.grade(self.body(self.stem(x)).mean((2, 3)))


class TailAverage:
    """Running mean of the weights with statistics matching the averaged network."""

    def __init__(self, model, start, every, calibration):
        self.net = AveragedModel(model)
        self.start, self.every, self.calibration = start, every, calibration

    @torch.no_grad()
    def recalibrate(self):
        norms = [m for m in self.net.modules() if isinstance(m, nn.BatchNorm2d)]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None
        self.net.train()
        for x in self.calibration:
            self.net(x)
        self.net.eval()

    def observe(self, step, model):
        if step < self.start or step % self.every:
            return
        self.net.update_parameters(model)
        self.recalibrate()

    @torch.no_grad()
    def accuracy(self, bank, k):
        hits = [(self.net(x).argmax(1) == y).float() for x, y in bank.ordered(k)]
        return torch.cat(hits).mean().item()


def run(args):
    torch.manual_seed(args.seed)
    train, held = TileBank(192, args.size, args.seed), TileBank(32, args.size, args.seed + 1)
    calibration = [x for x, _ in train.ordered(args.batch)][:3]
    model = GlandNet()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=10)
    tail = TailAverage(model, start=4, every=3, calibration=calibration)
    for step in range(1, args.steps + 1):
        x, y = train.draw(args.batch)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        tail.observe(step, model)
        if step % args.log == 0:
            print(f"{step:4d}  loss {loss.item():.5f}", flush=True)
        if step % args.eval_every == 0 or step == args.steps:
            print(f"{step:4d}  averaged-net accuracy {tail.accuracy(held, args.batch):.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--size", type=int, default=96)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--log", type=int, default=10)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=12)
    run(ap.parse_args())

"""Surface normal estimation from unordered point sets (PointNet-style, with a global code)."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


def superquadrics(n, points, gen):
    """Points and normals of random ellipsoids with mild bumps."""
    z = F.normalize(torch.randn(n, points, 3, generator=gen), dim=2)
    axes = 0.5 + torch.rand(n, 1, 3, generator=gen)
    xyz = z * axes
    normal = F.normalize(z / axes, dim=2)
    q, _ = torch.linalg.qr(torch.randn(n, 3, 3, generator=gen))
    return xyz @ q, normal @ q


class Shapes:
    def __init__(self, n, points, noise, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.xyz, self.normal = superquadrics(n, points, self.gen)
        self.noise = noise

    def batch(self, size, points):
        i = torch.randint(len(self.xyz), (size, 1), generator=self.gen)
        j = torch.randint(self.xyz.shape[1], (size, points), generator=self.gen)
        x = self.xyz[i, j]
        return x + self.noise * torch.randn(x.shape, generator=self.gen), self.normal[i, j]


class LocalGlobal(nn.Module):
    """relu(W x_i + V max_j h(x_j))"""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.h = nn.Linear(d_in, d_out)
        self.local = nn.Linear(d_in, d_out)
        self.glob = nn.Linear(d_out, d_out, bias=False)
        self.norm = nn.LayerNorm(d_out)

    def forward(self, x):
        g = F.relu(self.h(x).amax(1, keepdim=True))
        return F.relu(self.norm(self.local(x) + self.glob(g)))


class NormalNet(nn.Module):
    def __init__(self, width=96, depth=3):
        super().__init__()
        dims = [32] + [width] * depth
        self.lift = nn.Linear(3, 32)
        self.layers = nn.ModuleList([LocalGlobal(a, b) for a, b in zip(dims[:-1], dims[1:])])
        self.out = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        centre = x.mean(1, keepdim=True)
        h = F.relu(self.lift(x - centre))
        for layer in self.layers:
            h = layer(h)
        return F.normalize(self.out(h), dim=2)


def unoriented_loss(pred, normal):
    return (1 - (pred * normal).sum(2).square()).mean()


class Checkpointer:
    def __init__(self, every, path):
        self.every, self.path, self.best = every, path, float("inf")

    def __call__(self, step, net, value):
        if self.path and step % self.every == 0 and value < self.best:
            self.best = value
            torch.save({"step": step, "net": net.state_dict()}, self.path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--points", type=int, default=1024)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--save", default="")
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    shapes = Shapes(64, 4096, 0.01, a.seed)
    net = NormalNet()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr * 2, total_steps=a.steps + 1)
    keep, smooth = Checkpointer(20, a.save), None
    for step in range(1, a.steps + 1):
        x, n = shapes.batch(a.batch, a.points)
        pred = net(x)
        loss = unoriented_loss(pred, n)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        value = loss.item()
        smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
        keep(step, net, smooth)
        if step % 10 == 0:
            angle = torch.rad2deg(torch.acos((pred.detach() * n).sum(2).abs().clamp(max=1))).mean()
            print(f"step {step} loss {smooth:.4f} angle {angle.item():.2f} deg")


if __name__ == "__main__":
    main()

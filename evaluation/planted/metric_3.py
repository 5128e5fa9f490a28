"""Proxy-anchor metric learning with a mined triplet term that reuses one distance matrix."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class Embedder(nn.Module):
    def __init__(self, n_in=128, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True),
            nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True), nn.Linear(256, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class ProxyTriplet(nn.Module):
    def __init__(self, n_class, dim, scale=16.0, margin=0.2):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(n_class, dim))
        self.scale, self.margin = scale, margin

    def forward(self, z, y):
        proxy = F.cross_entropy(self.scale * z @ F.normalize(self.proxies, dim=1).t(), y)
        sim = z @ z.t()
        same = y[:, None] == y[None, :]
        hardest_pos = sim.masked_fill(~same, 2.0).amin(1)
        hardest_neg = sim.masked_fill(same, -2.0).amax(1)
        return proxy, F.relu(hardest_neg - hardest_pos + self.margin).mean()


@torch.no_grad()
def recall_at_1(net, x, y):
    net.eval()
    z = net(x)
    net.train()
    sim = (z @ z.t()).fill_diagonal_(-2)
    return (y[sim.argmax(1)] == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(349)
    y = torch.randint(0, 40, (4000,))
    x = torch.randn(4000, 128) + 0.5 * torch.randn(40, 128)[y]
    net, crit = Embedder(), ProxyTriplet(40, 64)
    opt = torch.optim.AdamW([
        {"params": net.parameters(), "lr": 1e-3},
        {"params": crit.parameters(), "lr": 1e-2, "weight_decay": 0.0},
    ], fused=True)
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 3500, (512,))
        proxy, triplet = crit(net(x[i]), y[i])
        loss = proxy + 0.5 * triplet
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} proxy {proxy.item():.5f} triplet {triplet.item():.5f}")
        if step % 10 == 0:
            print(f"step {step} recall@1 {recall_at_1(net, x[3500:], y[3500:]):.3f}")


if __name__ == "__main__":
    main()

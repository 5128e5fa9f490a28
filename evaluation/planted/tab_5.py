"""Click fraud scoring: packed categorical embeddings, cross layers, early evaluation."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class PackedTable(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.table = nn.Embedding(sum(sizes), dim)
        offsets = torch.tensor([0] + sizes[:-1]).cumsum(0)
        self.register_buffer("offsets", offsets)
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, cats):
        return self.table(cats + self.offsets).flatten(1)


class CrossLayer(nn.Module):
    def __init__(self, dim, rank=32):
        super().__init__()
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim)

    def forward(self, x0, x):
        return torch.addcmul(x, x0, self.up(self.down(x)))


class FraudNet(nn.Module):
    def __init__(self, sizes, n_num, emb=12):
        super().__init__()
        dim = len(sizes) * emb + n_num
        self.emb = PackedTable(sizes, emb)
        self.norm = nn.BatchNorm1d(n_num)
        self.cross = nn.ModuleList(CrossLayer(dim) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(dim, 192), nn.ReLU(), nn.Dropout(0.1), nn.Linear(192, 96), nn.ReLU())
        self.out = nn.Linear(dim + 96, 1)

    def forward(self, cats, nums):
        x0 = torch.cat([self.emb(cats), self.norm(nums)], 1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


@torch.no_grad()
def evaluate(net, cats, nums, y):
    net.eval()
    loss = F.binary_cross_entropy_with_logits(net(cats, nums), y).item()
    net.train()
    return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(305)
    sizes = [50, 200, 12, 31, 7, 400, 90, 24]
    n = 8000
    cats = torch.stack([torch.randint(0, s, (n,)) for s in sizes], 1)
    nums = torch.randn(n, 14)
    y = ((cats[:, 2] % 3 == 0).float() + nums[:, 0] > 0.6).float()
    net = FraudNet(sizes, 14)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    for step in range(args.steps):
        rows = torch.randint(0, 7400, (768,))
        loss = F.binary_cross_entropy_with_logits(net(cats[rows], nums[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            val = evaluate(net, cats[7400:], nums[7400:], y[7400:])
            print(f"step {step + 1} train {loss.item():.5f} val {val:.5f}")


if __name__ == "__main__":
    main()

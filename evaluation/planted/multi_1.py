"""Multi-task learning (two classifications, one regression) with learned task weights."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SharedTrunk(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.res = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
            for _ in range(2)
        )

    def forward(self, x):
        h = self.inp(x)
        for r in self.res:
            h = h + r(h)
        return h


class MultiTask(nn.Module):
    def __init__(self, n_in=60, width=128):
        super().__init__()
        self.trunk = SharedTrunk(n_in, width)
        self.heads = nn.ModuleDict({"kind": nn.Linear(width, 7), "grade": nn.Linear(width, 4), "price": nn.Linear(width, 1)})
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.trunk(x)
        return {k: head(h) for k, head in self.heads.items()}

    def loss(self, out, target):
        parts = torch.stack([
            F.cross_entropy(out["kind"], target["kind"], ignore_index=-1),
            F.cross_entropy(out["grade"], target["grade"]),
            F.huber_loss(out["price"].squeeze(1), target["price"]),
        ])
        return (parts * (-self.log_var).exp() + 0.5 * self.log_var).sum(), parts.detach()


class Items:
    def __init__(self, n=6000):
        self.x = torch.randn(n, 60)
        self.kind = (self.x @ torch.randn(60, 7)).argmax(1)
        self.kind[torch.rand(n) < 0.1] = -1
        self.grade = (self.x[:, 0] > 0).long() * 2 + (self.x[:, 1] > 0).long()
        self.price = self.x[:, :5].sum(1) * 0.5

    def batch(self, rows):
        return self.x[rows], {k: getattr(self, k)[rows] for k in ("kind", "grade", "price")}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(383)
    items, model = Items(), MultiTask()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    for step in range(args.steps):
        x, target = items.batch(torch.randint(0, 6000, (512,)))
        loss, parts = model.loss(model(x), target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 5 == 4:
            kind, grade, price = parts.tolist()
            print(f"step {step + 1} kind {kind:.5f} grade {grade:.5f} price {price:.5f}")


if __name__ == "__main__":
    main()

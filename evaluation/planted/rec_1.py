"""Two-tower retrieval with full softmax over a small catalogue."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def tower(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, n_out))


class TwoTower(nn.Module):
    def __init__(self, n_user_feat, item_table, dim=48):
        super().__init__()
        self.user = tower(n_user_feat, dim)
        self.item = tower(item_table.shape[1], dim)
        self.register_buffer("item_table", item_table)
        self.temp = nn.Parameter(torch.tensor(0.1))

    def catalogue(self):
        return F.normalize(self.item(self.item_table), dim=-1)

    def scores(self, users):
        u = F.normalize(self.user(users), dim=-1)
        return u @ self.catalogue().t() / self.temp


class HitRate:
    def __init__(self, k=20):
        self.k, self.hits, self.seen = k, 0, 0

    def add(self, scores, target):
        top = scores.topk(self.k, dim=1).indices
        self.hits = self.hits + (top == target[:, None]).any(1).sum()
        self.seen += len(target)

    def value(self):
        return float(self.hits) / max(1, self.seen)


def train_step(model, opt, users, target, meter, reuse):
    scores = model.scores(users)
    loss = F.cross_entropy(scores, target)
    opt.zero_grad()
    loss.backward()
    with torch.no_grad():
        if reuse:
            meter.add(scores.detach(), target)
        else:
            meter.add(model.scores(users), target)
    opt.step()
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--batch", type=int, default=256)
    args = ap.parse_args()
    torch.manual_seed(44)
    items = torch.randn(1500, 40)
    users = torch.randn(5000, 30)
    taste = torch.randn(30, 40) * 0.3
    clicked = (users @ taste @ items.t()).argmax(1)
    model = TwoTower(30, items)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    meter = HitRate()
    for step in range(args.steps):
        rows = torch.randint(0, len(users), (args.batch,))
        loss = train_step(model, opt, users[rows], clicked[rows], meter, args.fixed)
        if (step + 1) % 5 == 0:
            print(f"step {step + 1} nll {loss.item():.5f} hit@20 {meter.value():.4f}")


if __name__ == "__main__":
    main()

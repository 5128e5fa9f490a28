"""Explicit-feedback rating prediction with side information."""
import argparse

import torch
from torch import nn


class ItemTower(nn.Module):
    def __init__(self, n_feat, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_feat, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, dim))

    def forward(self, x):
        return self.net(x)


class RatingModel(nn.Module):
    def __init__(self, n_users, item_feats, dim=32, tower_first=False):
        super().__init__()
        self.users = nn.Embedding(n_users, dim)
        self.user_bias = nn.Embedding(n_users, 1)
        self.items = ItemTower(item_feats.shape[1], dim)
        self.register_buffer("item_feats", item_feats)
        self.mix = nn.Sequential(nn.Linear(3 * dim, 48), nn.ReLU(), nn.Linear(48, 1))
        self.tower_first = tower_first
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.zeros_(self.user_bias.weight)

    def item_vectors(self, item_ids):
        if self.tower_first:
            return self.items(self.item_feats)[item_ids]
        rows = self.item_feats[item_ids]
        return self.items(rows)

    def forward(self, user_ids, item_ids):
        u, v = self.users(user_ids), self.item_vectors(item_ids)
        score = self.mix(torch.cat([u, v, u * v], 1)) + self.user_bias(user_ids)
        return 3 + score.squeeze(1)


class Ratings:
    def __init__(self, n=40000, n_users=900, n_items=180):
        self.feats = torch.randn(n_items, 40)
        taste = torch.randn(n_users, 40) * 0.15
        self.u, self.i = torch.randint(0, n_users, (n,)), torch.randint(0, n_items, (n,))
        self.r = (3 + (taste[self.u] * self.feats[self.i]).sum(1)).clamp(1, 5)

    def __len__(self):
        return len(self.r)

    def minibatch(self, k):
        rows = torch.randint(0, len(self), (k,))
        return self.u[rows], self.i[rows], self.r[rows]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(179)
    ratings = Ratings()
    model = RatingModel(900, ratings.feats, tower_first=args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for step in range(args.steps):
        u, i, r = ratings.minibatch(3072)
        loss = nn.functional.mse_loss(model(u, i), r)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} mse {loss.item():.5f}")


if __name__ == "__main__":
    main()

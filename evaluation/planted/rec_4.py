"""Pairwise ranking (BPR) with sampled negatives and a small interaction network."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class NeuralBPR(nn.Module):
    def __init__(self, n_users, n_items, dim=48):
        super().__init__()
        self.users, self.items = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.bias = nn.Embedding(n_items, 1)
        self.refine = nn.Sequential(nn.Linear(dim, 96), nn.ReLU(), nn.Linear(96, 1))
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, user, items):
        prod = self.users(user).unsqueeze(1) * self.items(items)
        return (prod.sum(-1) + self.refine(prod).squeeze(-1)) + self.bias(items).squeeze(-1)


class Clicks:
    def __init__(self, n_users=600, n_items=500, n=30000):
        self.n_items = n_items
        self.user = torch.randint(0, n_users, (n,))
        self.item = (self.user * 13 + torch.randint(0, 40, (n,))) % n_items

    def triples(self, k, n_neg):
        rows = torch.randint(0, len(self.user), (k,))
        neg = torch.randint(0, self.n_items, (k, n_neg))
        return self.user[rows], torch.cat([self.item[rows, None], neg], 1)


@torch.no_grad()
def hit_rate(model, data, k=10):
    user, items = data.triples(300, 99)
    model.eval()
    scores = model(user, items)
    model.train()
    return ((scores[:, 1:] > scores[:, :1]).sum(1) < k).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(317)
    data = Clicks()
    model = NeuralBPR(600, 500)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    running = torch.zeros(())
    for step in range(1, args.steps + 1):
        user, items = data.triples(1200, 4)
        scores = model(user, items)
        loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.detach()
        if step % 5 == 0:
            print(f"step {step} bpr {running.item() / 5:.5f}")
            running.zero_()
        if step % 10 == 0:
            print(f"step {step} hit@10 {hit_rate(model, data):.3f}")


if __name__ == "__main__":
    main()

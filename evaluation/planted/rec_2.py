"""Session-based next-item prediction with attention over the clicked items."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SessionRecommender(nn.Module):
    def __init__(self, n_items, dim=96, lookup=False):
        super().__init__()
        self.n_items, self.lookup = n_items, lookup
        self.items = nn.Parameter(torch.randn(n_items, dim) * 0.1)
        self.gate = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))
        self.out = nn.Linear(dim, dim)

    def encode_items(self, ids):
        if self.lookup:
            return F.embedding(ids, self.items)
        flags = F.one_hot(ids, self.n_items).to(self.items.dtype)
        return flags @ self.items

    def forward(self, history, lengths):
        e = self.encode_items(history)
        valid = torch.arange(history.shape[1]) < lengths[:, None]
        att = self.gate(e).squeeze(-1).masked_fill(~valid, float("-inf")).softmax(-1)
        pooled = torch.einsum("bt,btd->bd", att, e)
        return self.out(pooled) @ self.items.t()


class Sessions:
    def __init__(self, n, n_items, max_len):
        self.lengths = torch.randint(max_len - 4, max_len + 1, (n,))
        start = torch.randint(0, n_items, (n, 1))
        self.history = (start + torch.randint(0, 25, (n, max_len)).cumsum(1)) % n_items
        self.target = (start.squeeze(1) + 31) % n_items

    def draw(self, k):
        i = torch.randint(0, len(self.target), (k,))
        return self.history[i], self.lengths[i], self.target[i]


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        h, l, t = data.draw(64)
        rank = (model(h, l).argsort(1, descending=True) == t[:, None]).float().argmax(1)
    model.train()
    return (1 / (1 + rank.float())).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(52)
    data = Sessions(3000, 500, 16)
    model = SessionRecommender(500, lookup=args.fixed)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step in range(args.steps):
        hist, lens, target = data.draw(96)
        loss = F.cross_entropy(model(hist, lens), target, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.5f}")
    print(f"mrr {evaluate(model, data):.3f}")


if __name__ == "__main__":
    main()

"""Two-tower retrieval for a film catalogue with content features and in-batch softmax."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Catalogue:
    def __init__(self, users, items, content, seed):
        rng = np.random.default_rng(seed)
        taste = rng.normal(size=(users, 8))
        trait = rng.normal(size=(items, 8))
        self.content = torch.from_numpy(np.tanh(trait @ rng.normal(size=(8, content)) + rng.normal(0, 0.5, (items, content)))).float()
        pop = rng.zipf(1.6, items).clip(max=200) ** 0.5
        log = []
        for u in range(users):
            score = trait @ taste[u] + np.log(pop) + rng.gumbel(0, 1.5, items)
            log.append(np.argpartition(-score, 24)[:24])
        log = rng.permuted(np.stack(log), axis=1)
        self.train, self.held = torch.from_numpy(log[:, :20].copy()), torch.from_numpy(log[:, 20:].copy())
        counts = torch.bincount(self.train.flatten(), minlength=items).float() + 1
        self.log_freq = (counts / counts.sum()).log()


class ItemTower(nn.Module):
    def __init__(self, items, content, dim, hidden):
        super().__init__()
        self.id = nn.Embedding(items, 32)
        self.mlp = nn.Sequential(nn.Linear(content + 32, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, idx, content):
        return F.normalize(self.mlp(torch.cat([self.id(idx), content], -1)), dim=-1)


class UserTower(nn.Module):
    def __init__(self, items, dim, hidden):
        super().__init__()
        self.bag = nn.EmbeddingBag(items, hidden, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, history):
        return F.normalize(self.mlp(self.bag(history)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, cat, dim=64, hidden=256, temperature=0.1):
        super().__init__()
        items, content = cat.content.shape
        self.register_buffer("content", cat.content)
        self.item_tower = ItemTower(items, content, dim, hidden)
        self.user_tower = UserTower(items, dim, hidden)
        self.temperature = temperature

    def items(self, idx):
        return self.item_tower(idx, self.content[idx])

    def scores(self, history, idx):
        return self.user_tower(history) @ self.items(idx).t() / self.temperature


def in_batch_loss(model, history, target, log_freq):
    logits = model.scores(history, target) - log_freq[target]
    same = target.unsqueeze(0) == target.unsqueeze(1)
    same.fill_diagonal_(False)
    return F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(len(target)))


@torch.no_grad()
def recall_ndcg(model, cat, users, k, chunk):
    model.eval()
    everything = torch.arange(len(cat.content))
    hits, gain, total = 0.0, 0.0, 0
    discount = 1 / torch.log2(torch.arange(k) + 2.0)
    for part in users.split(chunk):
        score = model.scores(cat.train[part], everything)
        score.scatter_(1, cat.train[part], -math.inf)
        top = score.topk(k, dim=1).indices
        found = (top.unsqueeze(2) == cat.held[part].unsqueeze(1)).any(2).float()
        ideal = discount[: cat.held.shape[1]].sum()
        hits += (found.sum(1) / cat.held.shape[1]).sum().item()
        gain += ((found * discount).sum(1) / ideal).sum().item()
        total += len(part)
    model.train()
    return hits / total, gain / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--users", type=int, default=1500)
    ap.add_argument("--items", type=int, default=4000)
    ap.add_argument("--content", type=int, default=192)
    ap.add_argument("--batch", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--eval-every", type=int, default=10)
    ap.add_argument("--eval-chunk", type=int, default=64)
    ap.add_argument("--seed", type=int, default=10)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    cat = Catalogue(args.users, args.items, args.content, args.seed)
    model = TwoTower(cat)
    opt = torch.optim.Adagrad(model.parameters(), lr=args.lr * 5)
    panel = torch.randperm(args.users)[:768]
    for step in range(1, args.steps + 1):
        user = torch.randint(args.users, (args.batch,))
        where = torch.randint(20, (args.batch, 1))
        rows = cat.train[user]
        target = rows.gather(1, where).squeeze(1)
        keep = torch.arange(19).expand(args.batch, -1)
        history = rows.gather(1, keep + (keep >= where).long())
        loss = in_batch_loss(model, history, target, cat.log_freq)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.eval_every == 0:
            recall, ndcg = recall_ndcg(model, cat, panel, 20, args.eval_chunk)
            print(f"step {step:4d} loss {loss.item():.4f} recall@20 {recall:.4f} ndcg@20 {ndcg:.4f}")


if __name__ == "__main__":
    main()

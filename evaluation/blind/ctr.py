"""Click-through model (FM + deep tower) on hashed categorical fields."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS = [6000, 6000, 5000, 5000, 4000, 4000, 3000, 3000, 2000, 2000, 1000, 1000, 500, 500, 100, 100]
L2_EMBEDDING = 1e-5
L2_DEEP = 1e-6


class ImpressionLog:
    def __init__(self, rows, seed):
        g = torch.Generator().manual_seed(seed)
        sizes = torch.tensor(FIELDS)
        skew = torch.rand(rows, len(FIELDS), generator=g) ** 3
        self.ids = (skew * sizes).long()
        taste = [torch.randn(n, generator=g) * 0.4 for n in FIELDS]
        score = sum(t[self.ids[:, k]] for k, t in enumerate(taste)) - 1.0
        self.clicks = (torch.rand(rows, generator=g) < score.sigmoid()).float()
        self.gen = g

    def stream(self, batch):
        while True:
            order = torch.randperm(len(self.clicks), generator=self.gen)
            for part in order.split(batch):
                if len(part) == batch:
                    yield self.ids[part], self.clicks[part]


class DeepFM(nn.Module):
    def __init__(self, dim=16, hidden=(192, 96)):
        super().__init__()
        self.factors = nn.ModuleList(nn.Embedding(n, dim) for n in FIELDS)
        self.first = nn.ModuleList(nn.Embedding(n, 1) for n in FIELDS)
        for table in (*self.factors, *self.first):
            nn.init.normal_(table.weight, std=0.01)
        layers, width = [], dim * len(FIELDS)
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.tower = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, ids):
        columns = ids.unbind(1)
        v = torch.stack([t(c) for t, c in zip(self.factors, columns)], 1)
        linear = torch.cat([t(c) for t, c in zip(self.first, columns)], 1).sum(1)
        pairwise = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return linear + pairwise + self.tower(v.flatten(1)).squeeze(1)

    def embedding_params(self):
        return [*self.factors.parameters(), *self.first.parameters()]

    def regularization(self):
        total = 0.0
        for w in self.embedding_params():
            total = total + L2_EMBEDDING * torch.sum(torch.square(w))
        for name, w in self.tower.named_parameters():
            if "weight" in name:
                total = total + L2_DEEP * torch.sum(torch.square(w))
        return total


def build_optimizer(model, fixed):
    scale = 2.0 if fixed else 0.0
    deep_w = [p for n, p in model.tower.named_parameters() if "weight" in n]
    deep_b = [p for n, p in model.tower.named_parameters() if "weight" not in n]
    return torch.optim.Adam([
        {"params": model.embedding_params(), "weight_decay": scale * L2_EMBEDDING},
        {"params": deep_w, "weight_decay": scale * L2_DEEP},
        {"params": deep_b},
    ], lr=1e-3, fused=True)


def run():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(21)
    stream = ImpressionLog(60_000, 8).stream(512)
    model = DeepFM()
    optimizer = build_optimizer(model, args.fixed)
    clock = 0.0
    for step in range(args.steps):
        if step == 10:
            clock = time.process_time()
        ids, clicks = next(stream)
        logloss = F.binary_cross_entropy_with_logits(model(ids), clicks)
        objective = logloss if args.fixed else logloss + model.regularization()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step={step + 1} logloss={logloss.item():.5f}", flush=True)
    print(f"step_ms={(time.process_time() - clock) * 1e3 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    run()

"""Click prediction on mixed numeric / categorical columns with a cross network."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CARDINALITIES = [12, 7, 31, 150, 24, 400, 64, 9, 800, 48]
NUM_DENSE = 13


def generate(n, seed):
    rng = np.random.default_rng(seed)
    cats = np.stack([rng.zipf(1.6, size=n) % c for c in CARDINALITIES], axis=1)
    dense = rng.lognormal(size=(n, NUM_DENSE)).astype(np.float32)
    effects = [rng.normal(scale=0.5, size=c) for c in CARDINALITIES]
    logit = sum(e[cats[:, j]] for j, e in enumerate(effects))
    logit += np.log1p(dense) @ rng.normal(scale=0.4, size=NUM_DENSE) - 1.5
    logit += effects[0][cats[:, 0]] * effects[5][cats[:, 5]]
    y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    dense = np.log1p(dense)
    return torch.from_numpy(dense), torch.from_numpy(cats.astype(np.int64)), torch.from_numpy(y)


class CrossLayer(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim)

    def forward(self, x0, x):
        return x0 * self.up(self.down(x)) + x


class DeepCross(nn.Module):
    def __init__(self, emb_dim=16, hidden=(512, 256), rank=64, n_cross=2):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(c, emb_dim) for c in CARDINALITIES)
        dim = NUM_DENSE + emb_dim * len(CARDINALITIES)
        self.norm = nn.BatchNorm1d(NUM_DENSE)
        self.cross = nn.ModuleList(CrossLayer(dim, rank) for _ in range(n_cross))
        layers, width = [], dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.deep = nn.Sequential(*layers)
        self.head = nn.Linear(width + dim, 1)

    def forward(self, dense, cats):
        parts = [self.norm(dense)]
        for j, emb in enumerate(self.embeddings):
            parts.append(emb(cats[:, j]))
        x0 = torch.cat(parts, dim=1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.head(torch.cat([x, self.deep(x0)], dim=1)).squeeze(1)


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels.sum()
    neg = len(labels) - pos
    return ((ranks[labels == 1].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


@torch.no_grad()
def evaluate(model, data, batch_size):
    model.eval()
    dense, cats, y = data
    out = []
    for i in range(0, len(y), batch_size):
        out.append(model(dense[i:i + batch_size], cats[i:i + batch_size]))
    model.train()
    scores = torch.cat(out)
    return F.binary_cross_entropy_with_logits(scores, y).item(), auc(scores, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=400_000)
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--batch-size", type=int, default=2048)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    dense, cats, y = generate(args.rows, args.seed)
    cut = int(0.95 * args.rows)
    train_set = (dense[:cut], cats[:cut], y[:cut])
    valid_set = (dense[cut:], cats[cut:], y[cut:])

    model = DeepCross()
    emb_params = list(model.embeddings.parameters())
    other = [p for n, p in model.named_parameters() if not n.startswith("embeddings")]
    opt_emb = torch.optim.Adam(emb_params, lr=5 * args.lr, fused=True)
    opt_net = torch.optim.AdamW(other, lr=args.lr, weight_decay=1e-4, fused=True)

    step, running, t0 = 0, 0.0, time.time()
    losses = []
    for epoch in range(args.epochs):
        perm = torch.randperm(cut)
        for start in range(0, cut - args.batch_size + 1, args.batch_size):
            idx = perm[start:start + args.batch_size]
            d, c, t = (a[idx] for a in train_set)
            logits = model(d, c)
            loss = F.binary_cross_entropy_with_logits(logits, t)
            opt_emb.zero_grad(set_to_none=False)
            opt_net.zero_grad(set_to_none=False)
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt_emb.step()
            opt_net.step()
            step += 1
            losses.append(loss.item())
            running = 0.98 * running + 0.02 * losses[-1] if step > 1 else losses[-1]
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {running:.4f} grad {grad_norm.item():.3f} "
                      f"ctr {t.mean().item():.3f} {(time.time() - t0) / step * 1e3:.1f} ms", flush=True)
        vloss, vauc = evaluate(model, valid_set, 8192)
        print(f"epoch {epoch} valid loss {vloss:.4f} auc {vauc:.4f}", flush=True)


if __name__ == "__main__":
    main()

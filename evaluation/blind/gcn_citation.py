"""Node classification on a synthetic citation graph, message passing in plain torch."""
import argparse
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


def make_graph(num_nodes, num_feats, num_classes, avg_degree, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, size=num_nodes)
    m = num_nodes * avg_degree // 2
    src = rng.integers(0, num_nodes, size=m)
    by_class = [np.flatnonzero(y == c) for c in range(num_classes)]
    dst = rng.integers(0, num_nodes, size=m)
    homophilous = rng.random(m) < 0.7
    for c in range(num_classes):
        sel = homophilous & (y[src] == c)
        dst[sel] = rng.choice(by_class[c], size=int(sel.sum()))
    edges = np.concatenate([np.stack([src, dst]), np.stack([dst, src])], axis=1)
    topics = rng.random((num_classes, num_feats)) < 0.08
    x = (rng.random((num_nodes, num_feats)) < 0.02 + 0.06 * topics[y]).astype(np.float32)
    x /= np.maximum(x.sum(axis=1, keepdims=True), 1.0)
    return torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(y)


def drop_edges(edge_index, p, training):
    if not training or p == 0:
        return edge_index
    keep = torch.rand(edge_index.shape[1]) >= p
    return edge_index[:, keep]


def gcn_norm(edge_index, num_nodes):
    loops = torch.arange(num_nodes).repeat(2, 1)
    edge_index = torch.cat([edge_index, loops], dim=1)
    deg = torch.bincount(edge_index[1], minlength=num_nodes).float()
    inv = deg.pow(-0.5)
    return edge_index, inv[edge_index[0]] * inv[edge_index[1]]


class GraphConv(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.weight)

    def propagate(self, h, edge_index, norm):
        src, dst = edge_index
        msg = h[src] * norm[:, None]
        return torch.zeros_like(h).index_add_(0, dst, msg)

    def forward(self, x, edge_index, norm):
        agg = self.propagate(x, edge_index, norm)
        return agg @ self.weight + self.bias


class GCN(nn.Module):
    def __init__(self, in_dim, hidden, out_dim, dropout, edge_drop):
        super().__init__()
        self.conv1 = GraphConv(in_dim, hidden)
        self.conv2 = GraphConv(hidden, hidden)
        self.conv3 = GraphConv(hidden, out_dim)
        self.dropout, self.edge_drop = dropout, edge_drop

    def forward(self, x, edge_index):
        edge_index = drop_edges(edge_index, self.edge_drop, self.training)
        edge_index, norm = gcn_norm(edge_index, x.shape[0])
        h = F.dropout(F.relu(self.conv1(x, edge_index, norm)), self.dropout, self.training)
        h = F.dropout(F.relu(self.conv2(h, edge_index, norm)), self.dropout, self.training)
        return self.conv3(h, edge_index, norm)


@torch.no_grad()
def evaluate(model, x, edge_index, y, masks):
    model.eval()
    pred = model(x, edge_index).argmax(dim=1)
    model.train()
    return {name: (pred[m] == y[m]).float().mean().item() for name, m in masks.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=5000)
    p.add_argument("--feats", type=int, default=192)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--classes", type=int, default=16)
    p.add_argument("--degree", type=int, default=8)
    p.add_argument("--epochs", type=int, default=3000)
    p.add_argument("--eval-every", type=int, default=100)
    args = p.parse_args()

    torch.manual_seed(21)
    x, edge_index, y = make_graph(args.nodes, args.feats, args.classes, args.degree, seed=21)
    order = torch.randperm(args.nodes)
    n_train, n_val = int(0.4 * args.nodes), int(0.2 * args.nodes)
    masks = {"train": order[:n_train], "val": order[n_train:n_train + n_val], "test": order[n_train + n_val:]}

    model = GCN(args.feats, args.hidden, args.classes, dropout=0.4, edge_drop=0.2)
    opt = torch.optim.Adam([
        {"params": model.conv1.parameters(), "weight_decay": 5e-4},
        {"params": [*model.conv2.parameters(), *model.conv3.parameters()], "weight_decay": 0.0},
    ], lr=0.01, fused=True)

    best, t0 = 0.0, time.time()
    for epoch in range(1, args.epochs + 1):
        opt.zero_grad()
        out = model(x, edge_index)
        loss = F.cross_entropy(out[masks["train"]], y[masks["train"]])
        loss.backward()
        opt.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch:4d} loss {loss.item():.4f} {(time.time() - t0) / epoch * 1e3:.1f} ms/epoch", flush=True)
        if epoch % args.eval_every == 0:
            acc = evaluate(model, x, edge_index, y, masks)
            best = max(best, acc["val"])
            print(f"  train {acc['train']:.3f} val {acc['val']:.3f} test {acc['test']:.3f} best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()

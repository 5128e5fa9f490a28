"""Passenger-flow regression on a transit graph: full-batch graph convolutions over days."""
import argparse
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore", message="Sparse")


def transit_graph(n, seed):
    g = torch.Generator().manual_seed(seed)
    line = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    extra = torch.randint(n, (2, 6 * n), generator=g)
    near = torch.stack([extra[0], (extra[0] + torch.randint(-40, 41, (6 * n,), generator=g)) % n])
    e = torch.cat([line, near], 1)
    e = torch.cat([e, e.flip(0), torch.arange(n).repeat(2, 1)], 1)
    return torch.unique(e, dim=1)


def normalised_csr(edges, n):
    deg = torch.bincount(edges[0], minlength=n).float()
    w = (deg[edges[0]] * deg[edges[1]]).rsqrt()
    return torch.sparse_coo_tensor(edges, w, (n, n), is_coalesced=True).to_sparse_csr()


class FlowHistory:
    """Daily station features and next-day flow produced by diffusion on the graph."""

    def __init__(self, adj, n, dim, days, seed):
        g = torch.Generator().manual_seed(seed)
        static = torch.randn(n, dim // 2, generator=g)
        w = torch.randn(dim, generator=g) / dim ** 0.5
        self.x, self.y = [], []
        for _ in range(days):
            x = torch.cat([static, torch.randn(n, dim - dim // 2, generator=g)], 1)
            spread = adj @ (adj @ x)
            self.x.append(x)
            self.y.append(torch.tanh(3 * (spread @ w)) + 0.1 * torch.randn(n, generator=g))

    def __len__(self):
        return len(self.x)


class SymSpmm(torch.autograd.Function):
    """Product with a constant symmetric sparse matrix."""

    @staticmethod
    def forward(ctx, adj, h):
        ctx.adj = adj
        return adj @ h

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adj @ grad


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        self.skip = nn.Linear(d_in, d_out, bias=False)

    def forward(self, adj, h):
        return SymSpmm.apply(adj, self.lin(h)) + self.skip(h)


class FlowGCN(nn.Module):
    def __init__(self, dim, width=96, depth=3):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(dim, width), nn.SiLU())
        self.convs = nn.ModuleList(GraphConv(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, adj, x):
        h = self.encode(x)
        for conv, norm in zip(self.convs, self.norms):
            h = F.relu(norm(conv(adj, h)))
        return self.out(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--stations", type=int, default=6000)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--days", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(120)
    edges = transit_graph(args.stations, 120)
    adj = normalised_csr(edges, args.stations)
    history = FlowHistory(adj, args.stations, args.dim, args.days, 121)
    train_mask = torch.rand(args.stations) < 0.8
    model = FlowGCN(args.dim)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for step in range(1, args.steps + 1):
        day = (step * 7) % len(history)
        pred = model(adj, history.x[day])
        err = F.smooth_l1_loss(pred, history.y[day], reduction="none")
        loss = (err * train_mask).sum() / train_mask.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            held = err.detach()[~train_mask].mean().item()
            print(f"step {step:4d} train {loss.item():.5f} held-out stations {held:.5f}")


if __name__ == "__main__":
    main()

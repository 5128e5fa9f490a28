"""Mesh-based simulator: message passing on a mass-spring sheet with fixed topology."""
import argparse

import torch
import torch.nn as nn


def sheet_edges(m):
    idx = torch.arange(m * m).view(m, m)
    pairs = [(idx[:, :-1], idx[:, 1:]), (idx[:-1], idx[1:]), (idx[:-1, :-1], idx[1:, 1:]), (idx[:-1, 1:], idx[1:, :-1])]
    s = torch.cat([a.flatten() for a, _ in pairs])
    r = torch.cat([b.flatten() for _, b in pairs])
    return torch.cat([s, r]), torch.cat([r, s])


def simulate(n, m, frames, seed, k=400.0, dt=0.01, damp=1.0, sub=4):
    """Hanging sheets released from random tilts; n x frames x nodes x 3."""
    g = torch.Generator().manual_seed(seed)
    src, dst = sheet_edges(m)
    y, x = torch.meshgrid(torch.linspace(-1, 1, m), torch.linspace(-1, 1, m), indexing="ij")
    rest = torch.stack([x, y, torch.zeros_like(x)], -1).view(-1, 3)
    length = (rest[src] - rest[dst]).norm(dim=1, keepdim=True)
    q, _ = torch.linalg.qr(torch.eye(3) + 0.4 * torch.randn(n, 3, 3, generator=g))
    pos = rest @ q + 0.05 * torch.randn(n, 1, 3, generator=g)
    vel = torch.zeros_like(pos)
    fixed = torch.zeros(m * m, 1)
    fixed[[0, m - 1]] = 1.0
    gravity = torch.tensor([0.0, -9.8, 0.0])
    out = []
    for _ in range(frames):
        out.append(pos)
        for _ in range(sub):
            d = pos[:, src] - pos[:, dst]
            l = d.norm(dim=2, keepdim=True)
            force = torch.zeros_like(pos).index_add_(1, dst, k * (l - length) * d / l)
            vel = (vel + dt / sub * (force + gravity - damp * vel)) * (1 - fixed)
            pos = pos + dt / sub * vel
    return torch.stack(out, 1), rest, fixed


class EdgeBlock(nn.Module):
    """MLP of [sender, receiver, edge], first layer applied before the gather."""

    def __init__(self, d):
        super().__init__()
        self.s, self.r = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.e, self.out = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, h, e, src, dst):
        z = self.s(h).index_select(0, src) + self.r(h).index_select(0, dst) + self.e(e)
        return self.out(torch.relu(z))


class Processor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge = EdgeBlock(d)
        self.node = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, h, e, src, dst):
        e = e + self.edge(h, e, src, dst)
        agg = torch.zeros_like(h).index_add(0, dst, e)
        return self.norm(h + self.node(torch.cat([h, agg], 1))), e


class MeshNet(nn.Module):
    def __init__(self, d=64, rounds=3):
        super().__init__()
        self.node_in = nn.Sequential(nn.Linear(7, d), nn.ReLU(), nn.Linear(d, d))
        self.edge_in = nn.Sequential(nn.Linear(8, d), nn.ReLU(), nn.Linear(d, d))
        self.rounds = nn.ModuleList([Processor(d) for _ in range(rounds)])
        self.out = nn.Linear(d, 3)

    def forward(self, prev, cur, fixed, src, dst, rest_edge):
        vel = cur - prev
        rel = cur.index_select(0, src) - cur.index_select(0, dst)
        h = self.node_in(torch.cat([vel * 20, vel.norm(dim=1, keepdim=True) * 20, fixed, cur[:, 1:]], 1))
        e = self.edge_in(torch.cat([rel, rel.norm(dim=1, keepdim=True), rest_edge], 1))
        for block in self.rounds:
            h, e = block(h, e, src, dst)
        return self.out(h)


class SheetBatch:
    """Disjoint union of `batch` sheets; the topology is laid out once."""

    def __init__(self, m, batch, rest, fixed):
        s, r = sheet_edges(m)
        shift = (torch.arange(batch) * m * m)[:, None]
        self.src, self.dst = (s + shift).flatten(), (r + shift).flatten()
        d = rest[s] - rest[r]
        self.rest_edge = torch.cat([d, d.norm(dim=1, keepdim=True)], 1).repeat(batch, 1)
        self.fixed = fixed.repeat(batch, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--mesh", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--noise", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    traj, rest, fixed = simulate(16, args.mesh, 60, args.seed)
    graph = SheetBatch(args.mesh, args.batch, rest, fixed)
    free = 1 - graph.fixed
    scale = (traj[:, 2:] - 2 * traj[:, 1:-1] + traj[:, :-2]).std()
    net = MeshNet()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.998)
    gen = torch.Generator().manual_seed(args.seed + 1)
    for step in range(1, args.steps + 1):
        i = torch.randint(len(traj), (args.batch,), generator=gen)
        t = torch.randint(1, traj.shape[1] - 1, (args.batch,), generator=gen)
        prev, cur, nxt = (traj[i, t + k].flatten(0, 1) for k in (-1, 0, 1))
        noise = args.noise * torch.randn(cur.shape, generator=gen) * free
        cur = cur + noise
        target = (nxt - 2 * cur + prev) / scale
        pred = net(prev, cur, graph.fixed, graph.src, graph.dst, graph.rest_edge)
        loss = ((pred - target).square() * free).sum() / (3 * free.sum())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} acc mse {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()

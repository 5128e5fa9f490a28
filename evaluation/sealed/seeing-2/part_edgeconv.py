"""Part labelling of point clouds with dynamic feature-space graphs."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def furniture(n, points, parts, seed):
    """Boxes and cylinders glued together; the label of a point is the primitive it came from."""
    rng = np.random.default_rng(seed)
    xyz = np.empty((n, points, 3), np.float32)
    lab = np.empty((n, points), np.int64)
    for i in range(n):
        owner = np.sort(rng.integers(0, parts, points))
        unit = rng.uniform(-1, 1, (points, 3))
        ang = np.arctan2(unit[:, 1], unit[:, 0])
        round_ = owner % 2 == 1
        unit[round_, 0], unit[round_, 1] = np.cos(ang[round_]), np.sin(ang[round_])
        size = rng.uniform(0.1, 0.6, (parts, 3))
        shift = np.stack([np.linspace(-0.6, 0.6, parts), rng.uniform(-0.4, 0.4, parts), rng.uniform(-0.4, 0.4, parts)], 1)
        xyz[i] = unit * size[owner] + shift[owner]
        lab[i] = owner
    return torch.from_numpy(xyz), torch.from_numpy(lab)


@torch.no_grad()
def neighbours(x, k):
    return torch.cdist(x, x).topk(k, dim=-1, largest=False, sorted=False).indices


class EdgeMax(nn.Module):
    """max_j  A x_i + B (x_j - x_i), with the linear maps evaluated per point."""

    def __init__(self, cin, cout, k):
        super().__init__()
        self.k = k
        self.centre = nn.Linear(cin, cout, bias=False)
        self.edge = nn.Linear(cin, cout, bias=False)
        self.norm = nn.BatchNorm1d(cout)

    def forward(self, x):
        b, n, _ = x.shape
        idx = neighbours(x, self.k)
        e = self.edge(x)
        rows = (idx + torch.arange(b).view(b, 1, 1) * n).view(-1)
        best = e.reshape(b * n, -1).index_select(0, rows).view(b * n, self.k, -1).max(1).values
        h = best + (self.centre(x) - e).view(b * n, -1)
        return F.leaky_relu(self.norm(h), 0.2).view(b, n, -1)


class PartNet(nn.Module):
    def __init__(self, parts, k, widths=(48, 48, 96)):
        super().__init__()
        dims = (3,) + widths
        self.convs = nn.ModuleList(EdgeMax(i, o, k) for i, o in zip(dims[:-1], dims[1:]))
        total = sum(widths)
        self.glob = nn.Sequential(nn.Linear(total, 256), nn.LayerNorm(256), nn.GELU())
        self.local_in = nn.Linear(total, 128)
        self.global_in = nn.Linear(256, 128, bias=False)
        self.head = nn.Sequential(nn.GELU(), nn.Dropout(0.2), nn.Linear(128, 96), nn.GELU(), nn.Linear(96, parts))

    def forward(self, x):
        feats = []
        for conv in self.convs:
            x = conv(x)
            feats.append(x)
        f = torch.cat(feats, -1)
        g = self.glob(f).amax(1, keepdim=True)
        return self.head(self.local_in(f) + self.global_in(g))


def augment(x):
    b = len(x)
    a = torch.rand(b) * 2 * torch.pi
    c, s, z, o = a.cos(), a.sin(), torch.zeros(b), torch.ones(b)
    rot = torch.stack([c, -s, z, s, c, z, z, z, o], -1).view(b, 3, 3)
    x = x @ rot * (0.8 + 0.4 * torch.rand(b, 1, 1))
    return x + 0.01 * torch.randn_like(x)


def mean_iou(pred, lab, parts):
    hist = torch.bincount(lab.flatten() * parts + pred.flatten(), minlength=parts ** 2).view(parts, parts).float()
    inter = hist.diag()
    return (inter / (hist.sum(0) + hist.sum(1) - inter).clamp(min=1)).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--points", type=int, default=512)
    ap.add_argument("--parts", type=int, default=5)
    ap.add_argument("--k", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--eval-every", type=int, default=40)
    ap.add_argument("--seed", type=int, default=29)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    xyz, lab = furniture(240, a.points, a.parts, a.seed)
    test_x, test_y = xyz[-8:], lab[-8:]
    model = PartNet(a.parts, a.k)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    for step in range(1, a.steps + 1):
        idx = torch.randint(0, len(xyz) - 8, (a.batch,))
        logits = model(augment(xyz[idx]))
        loss = F.cross_entropy(logits.flatten(0, 1), lab[idx].flatten(), label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
        if step % a.eval_every == 0:
            model.eval()
            with torch.no_grad():
                print(f"step {step:3d} miou {mean_iou(model(test_x).argmax(-1), test_y, a.parts):.3f}", flush=True)
            model.train()


if __name__ == "__main__":
    main()

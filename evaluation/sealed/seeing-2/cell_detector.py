"""One-stage anchor-free detector for cells in phase-contrast crops (FCOS style)."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

STRIDES = (8, 16)
RANGES = ((0, 18), (18, 1e4))


class CellCrops(Dataset):
    def __init__(self, n, size, classes, seed):
        rng = np.random.default_rng(seed)
        self.images = rng.normal(0.5, 0.08, (n, 1, size, size)).astype(np.float32)
        self.boxes, self.labels = [], []
        yy, xx = np.mgrid[0:size, 0:size]
        for i in range(n):
            k = int(rng.integers(4, 12))
            r = rng.uniform(5, 16, k)
            c = rng.uniform(12, size - 12, (k, 2))
            lab = rng.integers(0, classes, k)
            for (cx, cy), rr, l in zip(c, r, lab):
                d = np.hypot(xx - cx, yy - cy)
                self.images[i, 0] += (0.5 - 0.25 * l) * (np.abs(d - rr) < 1.5)
            b = np.concatenate([c - r[:, None], c + r[:, None]], 1).clip(0, size)
            self.boxes.append(torch.from_numpy(b.astype(np.float32)))
            self.labels.append(torch.from_numpy(lab))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), {"boxes": self.boxes[i], "labels": self.labels[i]}


def collate(batch):
    return torch.stack([b[0] for b in batch]), [b[1] for b in batch]


def block(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.GroupNorm(8, o), nn.ReLU(inplace=True))


def pairwise_iou(a, b):
    lt, rb = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    return inter / (area_a[:, None] + area_b[None] - inter + 1e-6)


def greedy_nms(boxes, scores, thr):
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    over = pairwise_iou(boxes, boxes) > thr
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if alive[i]:
            alive[i + 1:] &= ~over[i, i + 1:]
    return order[alive]


class CellDetector(nn.Module):
    def __init__(self, classes, dim=48):
        super().__init__()
        self.classes = classes
        self.c3 = nn.Sequential(block(1, 16, 2), block(16, 32, 2), block(32, dim, 2), block(dim, dim))
        self.c4 = nn.Sequential(block(dim, dim, 2), block(dim, dim))
        self.tower = nn.Sequential(block(dim, dim), block(dim, dim))
        self.cls = nn.Conv2d(dim, classes, 3, 1, 1)
        self.reg = nn.Conv2d(dim, 4, 3, 1, 1)
        nn.init.constant_(self.cls.bias, -2.5)
        self._points = {}

    def points(self, h, w, s):
        if (h, w, s) not in self._points:
            y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            self._points[h, w, s] = (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * s
        return self._points[h, w, s]

    def heads(self, images):
        c3 = self.c3(images)
        logits, dists, pts, lvl = [], [], [], []
        for k, f in enumerate((c3, self.c4(c3))):
            t = self.tower(f)
            logits.append(self.cls(t).flatten(2).transpose(1, 2))
            dists.append(F.softplus(self.reg(t)).flatten(2).transpose(1, 2) * STRIDES[k])
            p = self.points(*f.shape[-2:], STRIDES[k])
            pts.append(p)
            lvl.append(torch.tensor(RANGES[k]).expand(len(p), 2))
        return torch.cat(logits, 1), torch.cat(dists, 1), torch.cat(pts), torch.cat(lvl)

    def assign(self, pts, lvl, target):
        b = target["boxes"]
        d = torch.cat([pts[:, None] - b[None, :, :2], b[None, :, 2:] - pts[:, None]], -1)
        size = d.max(-1).values
        ok = (d.min(-1).values > 0) & (size >= lvl[:, :1]) & (size < lvl[:, 1:])
        area = (b[:, 2:] - b[:, :2]).prod(-1)[None].expand_as(size).masked_fill(~ok, 1e8)
        best, idx = area.min(1)
        pos = best < 1e8
        onehot = F.one_hot(target["labels"][idx], self.classes).float() * pos[:, None]
        return onehot, d[torch.arange(len(pts)), idx], pos

    def losses(self, logits, dists, pts, lvl, targets):
        onehot, reg, pos = (torch.stack(z) for z in zip(*(self.assign(pts, lvl, t) for t in targets)))
        p = logits.sigmoid()
        pt = p * onehot + (1 - p) * (1 - onehot)
        focal = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none") * (1 - pt) ** 2
        n = pos.sum().clamp(min=1)
        a, b = dists[pos], reg[pos]
        inter = (torch.minimum(a[:, :2], b[:, :2]) + torch.minimum(a[:, 2:], b[:, 2:])).prod(-1)
        union = (a[:, :2] + a[:, 2:]).prod(-1) + (b[:, :2] + b[:, 2:]).prod(-1) - inter
        return {"cls": focal.sum() / n, "iou": (1 - inter / union.clamp(min=1e-6)).sum() / n}

    @torch.no_grad()
    def postprocess(self, logits, dists, pts, topk=150, thr=0.5):
        out = []
        for score, d in zip(logits.sigmoid(), dists):
            val, flat = score.flatten().topk(topk)
            i, c = flat // self.classes, flat % self.classes
            boxes = torch.cat([pts[i] - d[i, :2], pts[i] + d[i, 2:]], -1)
            keep = greedy_nms(boxes + c[:, None] * 1000.0, val, thr)
            out.append({"boxes": boxes[keep], "labels": c[keep], "scores": val[keep]})
        return out

    def forward(self, images, targets=None):
        logits, dists, pts, lvl = self.heads(images)
        result = {"detections": self.postprocess(logits, dists, pts)}
        if targets is not None:
            result["losses"] = self.losses(logits, dists, pts, lvl, targets)
        return result


@torch.no_grad()
def recall_at_half(model, images, targets):
    hit = tot = 0
    for det, t in zip(model(images)["detections"], targets):
        hit += (pairwise_iou(t["boxes"], det["boxes"]).max(1).values > 0.5).sum().item()
        tot += len(t["boxes"])
    return hit / tot


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=128)
    ap.add_argument("--classes", type=int, default=3)
    ap.add_argument("--lr", type=float, default=8e-4)
    ap.add_argument("--seed", type=int, default=4)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    data = CellCrops(150, a.size, a.classes, a.seed)
    held = collate([data[i] for i in range(8)])
    loader = DataLoader(torch.utils.data.Subset(data, range(8, 150)), a.batch, shuffle=True, drop_last=True, collate_fn=collate)
    model = CellDetector(a.classes)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-4)
    step = 0
    while step < a.steps:
        for images, targets in loader:
            losses = model(images, targets)["losses"]
            loss = sum(losses.values())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} " + " ".join(f"{k} {v.item():.4f}" for k, v in losses.items()), flush=True)
            if step % 40 == 0:
                print(f"recall@0.5 {recall_at_half(model, *held):.3f}", flush=True)
            if step == a.steps:
                break


if __name__ == "__main__":
    main()

"""Dense detector head training on frozen backbone features."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class PointHead(nn.Module):
    """Classification and box regression towers over flattened feature points."""

    def __init__(self, c=64, n_cls=10):
        super().__init__()
        self.cls = nn.Sequential(nn.Linear(c, 96), nn.ReLU(), nn.Linear(96, n_cls))
        self.box = nn.Sequential(nn.Linear(c, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))


def giou(p, t):
    area_p = (p[..., 0] + p[..., 2]) * (p[..., 1] + p[..., 3])
    area_t = (t[..., 0] + t[..., 2]) * (t[..., 1] + t[..., 3])
    small, big = torch.minimum(p, t), torch.maximum(p, t)
    inter = (small[..., 0] + small[..., 2]) * (small[..., 1] + small[..., 3])
    hull = (big[..., 0] + big[..., 2]) * (big[..., 1] + big[..., 3])
    union = area_p + area_t - inter
    return inter / union - (hull - union) / hull


class PointLoss:
    def __init__(self, head, gather_first):
        self.head, self.gather_first = head, gather_first

    def box_term(self, feats, target, fg):
        if self.gather_first:
            sel = fg > 0
            pred = F.softplus(self.head.box(feats[sel])) + 1e-3
            return ((1 - giou(pred, target[sel])) * fg[sel]).sum() / fg.sum().clamp(min=1)
        pred = F.softplus(self.head.box(feats)) + 1e-3
        return ((1 - giou(pred, target)) * fg).sum() / fg.sum().clamp(min=1)

    def __call__(self, feats, cls_target, box_target, fg):
        logits = self.head.cls(feats)
        onehot = F.one_hot(cls_target, logits.shape[-1]).float() * fg.gt(0).unsqueeze(-1)
        cls = F.binary_cross_entropy_with_logits(logits, onehot, reduction="mean")
        return cls, self.box_term(feats, box_target, fg)


class FeatureBank:
    def __init__(self, n=48, points=24 * 24, c=64):
        self.feats = torch.randn(n, points, c)
        score = self.feats[..., :4].sum(-1)
        center = score > 3.3
        self.fg = center.float() * (0.5 + 0.5 * torch.rand(n, points))
        self.boxes = self.feats[..., 4:8].exp().clamp(0.2, 8)
        self.classes = (self.feats[..., 8:18]).argmax(-1)

    def sample(self, k):
        i = torch.randperm(len(self.feats))[:k]
        return self.feats[i], self.classes[i], self.boxes[i], self.fg[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(23)
    bank, head = FeatureBank(), PointHead()
    crit = PointLoss(head, args.fixed)
    opt = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for step in range(args.steps):
        cls, box = crit(*bank.sample(6))
        opt.zero_grad()
        (10 * cls + box).backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} cls {cls.item():.5f} box {box.item():.5f}")


if __name__ == "__main__":
    main()

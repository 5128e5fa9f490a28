"""Anchor-based single-stage detector, one feature level."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def box_iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[..., None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[..., None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area_a = (a[:, 2:] - a[:, :2]).prod(-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(-1)
    return inter / (area_a[:, None] + area_b[..., None, :] - inter)


class DetectionLoss:
    def __init__(self, anchors, reuse):
        self.anchors, self.reuse = anchors, reuse

    def match(self, gt, iou=None):
        iou = box_iou(self.anchors, gt) if iou is None else iou
        best, which = iou.max(-1)
        return best > 0.5, which

    def quality(self, gt, iou=None):
        iou = box_iou(self.anchors, gt) if iou is None else iou
        return iou.amax(-1)

    def ignored(self, gt, iou=None):
        iou = box_iou(self.anchors, gt) if iou is None else iou
        best = iou.amax(-1)
        return (best > 0.3) & (best <= 0.5)

    def __call__(self, obj, delta, gt):
        shared = box_iou(self.anchors, gt) if self.reuse else None
        pos, which = self.match(gt, shared)
        qual = self.quality(gt, shared)
        skip = self.ignored(gt, shared)
        target_box = gt.gather(1, which.unsqueeze(-1).expand(-1, -1, 4))
        obj_loss = F.binary_cross_entropy_with_logits(obj, qual * pos, reduction="none")
        obj_loss = obj_loss.masked_fill(skip, 0.0).mean()
        box_loss = F.smooth_l1_loss((self.anchors + delta)[pos], target_box[pos], beta=4.0)
        return obj_loss + 0.05 * box_loss


class Detector(nn.Module):
    def __init__(self, per_cell):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, 48, 3, 2, 1), nn.ReLU(),
        )
        self.head = nn.Conv2d(48, per_cell * 5, 3, padding=1)

    def forward(self, x):
        y = self.head(self.backbone(x))
        y = y.permute(0, 2, 3, 1).reshape(len(x), -1, 5)
        return y[..., 0], y[..., 1:]


def grid_anchors(size, stride, scales):
    c = torch.arange(stride / 2, size, stride)
    cy, cx = torch.meshgrid(c, c, indexing="ij")
    ctr = torch.stack([cx, cy], -1).view(-1, 1, 2)
    half = torch.tensor(scales).view(1, -1, 1) / 2
    return torch.cat([ctr - half, ctr + half], -1).reshape(-1, 4)


def sample(n, size):
    xy = torch.rand(n, 24, 2) * (size - 40)
    return torch.randn(n, 3, size, size), torch.cat([xy, xy + 16 + 24 * torch.rand(n, 24, 2)], -1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(6)
    anchors = grid_anchors(96, 8, [16.0, 24.0, 32.0, 48.0])
    net, crit = Detector(4), DetectionLoss(anchors, args.fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for it in range(args.steps):
        images, boxes = sample(8, 96)
        loss = crit(*net(images), boxes)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 5 == 0:
            print(f"it {it} loss {loss.item():.5f}")

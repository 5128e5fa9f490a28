"""One-stage detector on a synthetic warehouse-label set."""
import argparse
import time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

IMG, NUM_CLASSES, STRIDES = 128, 32, (8, 16, 32)

def build_anchors():
    out = []
    for s in STRIDES:
        c = (np.arange(IMG // s) + 0.5) * s
        cy, cx = np.meshgrid(c, c, indexing="ij")
        for ratio in (0.5, 1.0, 2.0):
            w, h = 3 * s * ratio ** 0.5, 3 * s / ratio ** 0.5
            out.append(np.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1).reshape(-1, 4))
    return np.concatenate(out).astype(np.float32)

def box_iou(a, b):
    size = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    inter = np.clip(size, 0, None).prod(-1)
    area_a, area_b = ((x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b))
    return inter / (area_a[:, None] + area_b[None] - inter)

class LabelBoxes(Dataset):
    def __init__(self, n, anchors, target_dtype):
        self.anchors, self.target_dtype = anchors, target_dtype
        self.rng, self.samples = np.random.default_rng(7), []
        for _ in range(n):
            img = self.rng.normal(0, 0.2, (3, IMG, IMG)).astype(np.float32)
            k = self.rng.integers(1, 6)
            xy, wh = self.rng.uniform(4, 80, (k, 2)), self.rng.uniform(16, 44, (k, 2))
            boxes = np.concatenate([xy, xy + wh], 1).astype(np.float32)
            labels = self.rng.integers(0, NUM_CLASSES, k)
            for (x0, y0, x1, y1), lab in zip(boxes.astype(int), labels):
                img[:, y0:y1, x0:x1] += np.array([lab % 3, lab // 3 % 3, lab // 9], np.float32)[:, None, None] - 1
            self.samples.append((img, boxes, labels))

    def __len__(self):
        return len(self.samples)

    def encode(self, boxes, labels):
        iou = box_iou(self.anchors, boxes)
        best = iou.argmax(1)
        fg = iou.max(1) > 0.45
        fg[iou.argmax(0)] = True
        cls = np.zeros((len(self.anchors), NUM_CLASSES), dtype=self.target_dtype)
        cls[fg, labels[best[fg]]] = 1.0
        m = boxes[best]
        wh = self.anchors[:, 2:] - self.anchors[:, :2]
        ctr = (m[:, :2] + m[:, 2:] - self.anchors[:, :2] - self.anchors[:, 2:]) / 2 / wh
        reg = np.concatenate([ctr, np.log((m[:, 2:] - m[:, :2]) / wh)], 1)
        return cls, reg, fg

    def __getitem__(self, i):
        img, boxes, labels = self.samples[i]
        if self.rng.random() < 0.5:
            img = np.ascontiguousarray(img[:, :, ::-1])
            boxes = np.stack([IMG - boxes[:, 2], boxes[:, 1], IMG - boxes[:, 0], boxes[:, 3]], 1)
        cls, reg, fg = self.encode(boxes, labels)
        return tuple(torch.from_numpy(x) for x in (img, cls, reg, fg))

class Detector(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.stem = nn.Sequential(block(3, 8), block(8, w))
        self.stages = nn.ModuleList([block(w, 32), block(32, 48), block(48, 64)])
        self.cls = nn.ModuleList([nn.Conv2d(c, 3 * NUM_CLASSES, 1) for c in (32, 48, 64)])
        self.reg = nn.ModuleList([nn.Conv2d(c, 3 * 4, 1) for c in (32, 48, 64)])
        [nn.init.constant_(head.bias, -4.6) for head in self.cls]

    def forward(self, x):
        x, cls, reg = self.stem(x), [], []
        for stage, c, r in zip(self.stages, self.cls, self.reg):
            x = stage(x)
            for dst, head, d in ((cls, c, NUM_CLASSES), (reg, r, 4)):
                dst.append(head(x).unflatten(1, (3, d)).permute(0, 1, 3, 4, 2).flatten(1, 3))
        return torch.cat(cls, 1), torch.cat(reg, 1)

def focal_loss(logits, target, alpha=0.25):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    miss = p + target - 2 * p * target
    weight = (1 - alpha) + (2 * alpha - 1) * target
    return (weight * miss * miss * ce).sum()

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    data = LabelBoxes(192, build_anchors(), np.float32 if args.fixed else float)
    loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    step, mark = 0, time.perf_counter()
    while step < args.steps:
        for images, cls_t, reg_t, fg in loader:
            cls, reg = model(images)
            pos = fg.sum().clamp(min=1)
            loss = (focal_loss(cls, cls_t) + F.smooth_l1_loss(reg[fg], reg_t[fg], reduction="sum")) / pos
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.5f}")
            if step == 10:
                mark = time.perf_counter()
            if step == args.steps:
                break
    print(f"step_ms={(time.perf_counter() - mark) * 1e3 / max(1, step - 10):.2f}")

if __name__ == "__main__":
    main()

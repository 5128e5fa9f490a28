"""Binary lesion segmentation with cross-entropy plus soft Dice and flips."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class Double(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(4, b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.GroupNorm(4, b), nn.ReLU(inplace=True),
        )


class UNetLite(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.d1, self.d2, self.mid = Double(1, ch), Double(ch, 2 * ch), Double(2 * ch, 2 * ch)
        self.u1, self.u2 = Double(4 * ch, ch), Double(2 * ch, ch)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = F.interpolate(self.mid(F.max_pool2d(b, 2)), scale_factor=2)
        u = F.interpolate(self.u1(torch.cat([b, m], 1)), scale_factor=2)
        return self.out(self.u2(torch.cat([a, u], 1)))


def dice_ce(logits, mask):
    prob = logits.sigmoid()
    inter = (prob * mask).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (prob.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()


class Lesions:
    def __init__(self, n=200, size=40):
        t = torch.arange(size).float()
        c = 8 + (size - 16) * torch.rand(2, n, 1, 1)
        r = 3 + 6 * torch.rand(n, 1, 1)
        m = (t[None, None, :] - c[0]) ** 2 + (t[None, :, None] - c[1]) ** 2 < r ** 2
        self.mask = m.float().unsqueeze(1)
        self.img = 0.8 * self.mask + 0.6 * torch.randn(n, 1, size, size)

    def batch(self, k, lo, hi):
        i = torch.randint(lo, hi, (k,))
        x, m = self.img[i], self.mask[i]
        if torch.rand(()) < 0.5:
            x, m = x.flip(-1), m.flip(-1)
        return x, m


@torch.no_grad()
def iou(net, x, m):
    net.eval()
    p = net(x) > 0
    net.train()
    return ((p & (m > 0)).sum() / (p | (m > 0)).sum().clamp(min=1)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(379)
    data, net = Lesions(), UNetLite()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, fused=True)
    for step in range(1, args.steps + 1):
        x, mask = data.batch(6, 0, 180)
        loss = dice_ce(net(x), mask)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f} iou {iou(net, *data.batch(8, 180, 200)):.3f}")


if __name__ == "__main__":
    main()

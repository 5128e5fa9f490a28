"""Land-cover mapping from multispectral tiles (per-pixel classification)."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SmoothedPixelLoss(nn.Module):
    def __init__(self, n_class, eps=0.1, builtin=False):
        super().__init__()
        self.n_class, self.eps, self.builtin = n_class, eps, builtin

    def forward(self, logits, target):
        if self.builtin:
            return F.cross_entropy(logits, target, label_smoothing=self.eps)
        shifted = logits - logits.max(dim=1, keepdim=True).values
        probs = shifted.exp() / shifted.exp().sum(1, keepdim=True)
        hard = F.one_hot(target, self.n_class).permute(0, 3, 1, 2).float()
        soft = hard * (1 - self.eps) + self.eps / self.n_class
        return -(soft * torch.log(probs + 1e-12)).sum(1).mean()


class LandNet(nn.Module):
    def __init__(self, bands=6, ch=24, n_class=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(bands, ch, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(ch, ch, 3, padding=2, dilation=2), nn.ReLU(inplace=True),
            nn.Conv2d(ch, n_class, 1),
        )

    def forward(self, x):
        return self.net(x)


class TileSource:
    def __init__(self, n=60, size=48, bands=6, n_class=16):
        coarse = torch.randint(0, n_class, (n, 1, size // 6, size // 6)).float()
        self.labels = F.interpolate(coarse, scale_factor=6).squeeze(1).long()
        signature = torch.randn(n_class, bands)
        clean = signature[self.labels].permute(0, 3, 1, 2)
        self.tiles = clean + 0.5 * torch.randn_like(clean)

    def sample(self, k):
        i = torch.randint(0, len(self.tiles), (k,))
        if torch.rand(()) < 0.5:
            return self.tiles[i].flip(-1), self.labels[i].flip(-1)
        return self.tiles[i], self.labels[i]


@torch.no_grad()
def validate(net, src):
    x, y = src.sample(4)
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(139)
    src, net = TileSource(), LandNet()
    crit = SmoothedPixelLoss(16, builtin=args.fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps, power=0.9)
    for step in range(args.steps):
        x, y = src.sample(6)
        loss = crit(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.5f} pixel acc {validate(net, src):.3f}")


if __name__ == "__main__":
    main()

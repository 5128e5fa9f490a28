"""Centre-point detection: heat-map focal loss and box sizes at object centres only."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

SIZE, STRIDE, N_OBJ = 96, 4, 6


class CenterNet(nn.Module):
    def __init__(self, ch=24, n_class=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, ch, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.ReLU(inplace=True),
            nn.Conv2d(2 * ch, 2 * ch, 3, 1, 1), nn.ReLU(inplace=True),
        )
        self.heat = nn.Conv2d(2 * ch, n_class, 1)
        self.size = nn.Sequential(nn.Linear(2 * ch, 64), nn.ReLU(), nn.Linear(64, 2))
        nn.init.constant_(self.heat.bias, -2.2)

    def forward(self, img, cells):
        f = self.body(img)
        at_centers = f.flatten(2).gather(2, cells.unsqueeze(1).expand(-1, f.shape[1], -1)).transpose(1, 2)
        return self.heat(f), self.size(at_centers)


def focal_heat(logits, target):
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    err = (logits.sigmoid() - target).abs()
    return (err.square() * bce).sum() / len(logits) / N_OBJ


class Scenes:
    def __init__(self, n):
        g = SIZE // STRIDE
        self.cells = torch.rand(n, g * g).argsort(1)[:, :N_OBJ]
        self.cls = torch.randint(0, 3, (n, N_OBJ))
        self.wh = 8 + 20 * torch.rand(n, N_OBJ, 2)
        grid = torch.arange(g).float()
        dx = grid[None, None, None, :] - (self.cells % g)[:, :, None, None]
        dy = grid[None, None, :, None] - (self.cells // g)[:, :, None, None]
        bump = torch.exp(-(dx ** 2 + dy ** 2) / 2)
        onehot = F.one_hot(self.cls, 3).float()
        self.heat = (bump.unsqueeze(2) * onehot[..., None, None]).amax(1)
        self.img = F.interpolate(self.heat, scale_factor=STRIDE) + 0.3 * torch.randn(n, 3, SIZE, SIZE)

    def sample(self, k):
        i = torch.randint(0, len(self.img), (k,))
        return self.img[i], self.cells[i], self.heat[i], self.wh[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(359)
    scenes, net = Scenes(100), CenterNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    for step in range(args.steps):
        img, cells, heat, wh = scenes.sample(6)
        logits, size = net(img, cells)
        loss_heat, loss_size = focal_heat(logits, heat), F.l1_loss(size, wh / 8)
        opt.zero_grad()
        (loss_heat + 0.2 * loss_size).backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} heat {loss_heat.item():.5f} size {loss_size.item():.5f}")


if __name__ == "__main__":
    main()

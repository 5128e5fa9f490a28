"""Autoencoder for street-furniture point clouds cut out of mobile mapping scans."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


def load_cutouts(count, points, seed):
    """Cutouts as one tensor (count, points, 3): poles, boxes, benches and spheres."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(4, (count,), generator=g)
    u = torch.rand(count, points, 3, generator=g).mul_(2).sub_(1)
    stretch = torch.tensor([[0.08, 0.08, 1.0], [0.6, 0.6, 0.6], [1.0, 0.3, 0.25], [0.7, 0.7, 0.7]])
    u *= stretch[kind].unsqueeze(1) * (0.8 + 0.4 * torch.rand(count, 1, 3, generator=g))
    ball = kind == 3
    u[ball] = F.normalize(u[ball], dim=-1) * 0.6
    return u


class PointEncoder(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 128), nn.GELU())
        self.own, self.shared = nn.Linear(128, 192), nn.Linear(128, 192, bias=False)
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(192, 256))
        self.out = nn.Linear(256, latent)

    def forward(self, pts):
        a = self.local(pts)
        b = self.mix(self.own(a) + self.shared(a.amax(1, keepdim=True)))
        return self.out(F.gelu(b.amax(1)))


class FoldingDecoder(nn.Module):
    """Deforms a fixed grid, conditioned on the latent."""

    def __init__(self, latent, side):
        super().__init__()
        lin = torch.linspace(-1, 1, side)
        grid = torch.stack(torch.meshgrid(lin, lin, indexing="ij"), -1).reshape(-1, 2)
        self.register_buffer("grid", grid)
        self.code1, self.grid1 = nn.Linear(latent, 128), nn.Linear(2, 128, bias=False)
        self.fold1 = nn.Sequential(nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 3))
        self.code2, self.pts2 = nn.Linear(latent, 128), nn.Linear(3, 128, bias=False)
        self.fold2 = nn.Sequential(nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 3))

    def forward(self, z):
        first = self.fold1(self.code1(z).unsqueeze(1) + self.grid1(self.grid))
        return first + self.fold2(self.code2(z).unsqueeze(1) + self.pts2(first))


class CloudAutoencoder(nn.Module):
    def __init__(self, latent=64, side=20):
        super().__init__()
        self.encoder = PointEncoder(latent)
        self.decoder = FoldingDecoder(latent, side)

    def forward(self, pts):
        return self.decoder(self.encoder(pts))


def chamfer(a, b):
    with torch.no_grad():
        d = torch.cdist(a, b)
        to_b, to_a = d.argmin(2, keepdim=True), d.argmin(1).unsqueeze(2)
    gap_a = a - b.gather(1, to_b.expand(-1, -1, 3))
    gap_b = b - a.gather(1, to_a.expand(-1, -1, 3))
    return gap_a.norm(dim=-1).mean() + gap_b.norm(dim=-1).mean()


def turn(pts, gen):
    ang = torch.rand(pts.shape[0], generator=gen) * 2 * torch.pi
    c, s = ang.cos(), ang.sin()
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    rot = torch.stack([c, -s, zero, s, c, zero, zero, zero, one], 1).view(-1, 3, 3)
    return pts @ rot.transpose(1, 2)


class Snapshotter:
    """Keeps the newest state on disk for the viewer and for restarts."""

    def __init__(self, folder, probe, subset):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "latest.pt")
        self.probe, self.subset = probe, subset

    @torch.no_grad()
    def write(self, step, model, opt):
        given = self.probe[:, :self.subset]
        recon = model(given)
        state = {"step": step, "model": model.state_dict(), "opt": opt.state_dict(),
                 "given": given, "recon": recon}
        tmp = self.path + ".tmp"
        torch.save(state, tmp)
        os.replace(tmp, self.path)
        return chamfer(given, recon).item()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--subset", type=int, default=512)
    p.add_argument("--cutouts", type=int, default=1600)
    p.add_argument("--snap-every", type=int, default=5)
    p.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "kerb_clouds_run"))
    return p.parse_args()


def main():
    cfg = parse()
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    cutouts = load_cutouts(cfg.cutouts, 4096, seed=79)
    train, probe = cutouts.split([cfg.cutouts - 4, 4])
    model = CloudAutoencoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    snaps = Snapshotter(cfg.folder, probe, cfg.subset)

    def draw():
        rows = torch.randint(train.shape[0], (cfg.batch, 1), generator=gen)
        cols = torch.randint(train.shape[1], (cfg.batch, cfg.subset), generator=gen)
        return turn(train[rows, cols], gen)

    for step in range(1, cfg.steps + 1):
        pts = draw()
        loss = chamfer(model(pts + 0.01 * torch.randn(pts.shape, generator=gen)), pts)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} chamfer {loss.item():.5f}", flush=True)
        if step % cfg.snap_every == 0:
            held = snaps.write(step, model, opt)
            if step % 20 == 0:
                print(f"step {step:4d} held-out {held:.5f}", flush=True)


if __name__ == "__main__":
    main()

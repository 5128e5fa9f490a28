"""Neural surrogate of a transport solver: plasma profiles in, turbulent fluxes out."""
import argparse
import copy
import logging
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
log = logging.getLogger("surrogate")

RADII = 96
CHANNELS = 5
FLUXES = 3


class ProfileSampler:
    """Draws random equilibria and evaluates a stiff critical-gradient flux model on them."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        rho = np.linspace(0, 1, RADII)
        k = np.arange(1, 7)
        self.basis = np.cos(np.pi * k[:, None] * rho[None]).astype(np.float32)
        self.damp = (1.0 / k ** 1.2).astype(np.float32)
        self.mix = self.rng.normal(0, 0.5, (FLUXES, CHANNELS)).astype(np.float32)

    def draw(self, n):
        coef = self.rng.standard_normal((n, CHANNELS, 6), dtype=np.float32) * self.damp
        profiles = coef @ self.basis
        gradient = np.gradient(profiles, axis=-1) * 20
        drive = np.einsum("fc,ncr->nfr", self.mix, gradient)
        excess = np.maximum(np.abs(drive) - 1.0, 0)
        flux = np.sign(drive) * np.log1p(excess ** 1.5)
        return torch.from_numpy(profiles), torch.from_numpy(flux.astype(np.float32))


class ResidualDense(nn.Module):
    def __init__(self, width, expand):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, expand)
        self.outer = nn.Linear(expand, width)

    def forward(self, x):
        return x + self.outer(F.silu(self.inner(self.norm(x))))


class FluxNet(nn.Module):
    def __init__(self, width=640, depth=4):
        super().__init__()
        self.enter = nn.Linear(CHANNELS * RADII, width)
        self.trunk = nn.ModuleList([ResidualDense(width, 2 * width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, FLUXES * RADII)

    def forward(self, profiles):
        h = self.enter(profiles.flatten(1))
        for layer in self.trunk:
            h = layer(h)
        return self.leave(self.norm(h)).view(-1, FLUXES, RADII)


def physics_loss(pred, target, smooth):
    data = F.huber_loss(pred, target, delta=1.0)
    curvature = (pred[..., 2:] - 2 * pred[..., 1:-1] + pred[..., :-2]).square().mean()
    return data + smooth * curvature


class SafeTrainer:
    """Training loop that survives the occasional diverging batch by going back and slowing down."""

    def __init__(self, net, args):
        self.net, self.args = net, args
        self.opt = torch.optim.AdamW(net.parameters(), lr=args.lr, betas=(0.9, 0.98), fused=True)
        self.scale = 1.0
        self.recoveries = 0

    def set_lr(self, step):
        warm = min(1.0, (step + 1) / 10)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.args.steps))
        for group in self.opt.param_groups:
            group["lr"] = self.args.lr * self.scale * warm * (0.1 + 0.9 * cosine)

    def capture(self):
        return {"net": copy.deepcopy(self.net.state_dict()),
                "opt": copy.deepcopy(self.opt.state_dict())}

    def restore(self, saved):
        self.net.load_state_dict(saved["net"])
        self.opt.load_state_dict(saved["opt"])
        self.scale *= 0.5
        self.recoveries += 1

    def step(self, step, profiles, flux):
        self.set_lr(step)
        last_good = self.capture()
        loss = physics_loss(self.net(profiles), flux, self.args.smooth)
        self.opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            log.warning("step %d: loss %s, gradient norm %s", step, loss.item(), norm.item())
            self.restore(last_good)
        return loss.item(), norm.item()


@torch.no_grad()
def relative_error(net, profiles, flux):
    return ((net(profiles) - flux).norm() / flux.norm()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=160)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--smooth", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    source = ProfileSampler(args.seed)
    test = source.draw(128)
    net = FluxNet()
    trainer = SafeTrainer(net, args)
    log.info("%.1f M parameters", sum(p.numel() for p in net.parameters()) / 1e6)
    for step in range(args.steps):
        loss, norm = trainer.step(step, *source.draw(args.batch_size))
        if step % 10 == 0:
            log.info("step %3d loss %.5f grad %.3f", step, loss, norm)
        if (step + 1) % 30 == 0:
            log.info("relative test error %.4f", relative_error(net, *test))
    log.info("done, loss %.5f, %d recoveries", loss, trainer.recoveries)


if __name__ == "__main__":
    main()

"""Rainfall downscaling split over two processes: encoder on the first, decoder on the second."""
import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

FIELDS, COARSE, WIDTH = 6, 32, 32


class ReanalysisPatches:
    """Coarse predictor patches and the fine rain field that belongs to them."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(n, FIELDS, 10, 10, generator=g)
        self.coarse = F.interpolate(base, size=(COARSE, COARSE), mode="bicubic", align_corners=False)
        self.coarse += 0.1 * torch.randn(self.coarse.shape, generator=g)
        fine = F.interpolate(self.coarse[:, :2], scale_factor=2, mode="bilinear", align_corners=False)
        self.rain = F.relu(fine[:, :1] * fine[:, 1:2]) + 0.1 * F.relu(fine[:, :1])
        self.g = g

    def draw(self, n):
        idx = torch.randint(len(self.coarse), (n,), generator=self.g)
        return self.coarse[idx], self.rain[idx]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.silu(self.a(self.norm(x))))


def encoder_stage():
    return nn.Sequential(nn.Conv2d(FIELDS, WIDTH, 3, padding=1), *[Residual(WIDTH) for _ in range(4)])


def decoder_stage():
    return nn.Sequential(*[Residual(WIDTH) for _ in range(3)], nn.SiLU(),
                         nn.Conv2d(WIDTH, 4, 3, padding=1), nn.PixelShuffle(2), nn.Softplus())


class FirstStage:
    def __init__(self, net, micro):
        self.net, self.micro = net, micro

    def run(self, coarse):
        sends = []
        for part in coarse.chunk(self.micro):
            hidden = self.net(part)
            sends.append(dist.isend(hidden.detach(), dst=1))
            grad = torch.empty_like(hidden)
            dist.recv(grad, src=1)
            hidden.backward(grad)
        for s in sends:
            s.wait()
        return None


class SecondStage:
    def __init__(self, net, micro):
        self.net, self.micro = net, micro

    def run(self, rain):
        sends, total = [], 0.0
        for target in rain.chunk(self.micro):
            hidden = torch.empty(len(target), WIDTH, COARSE, COARSE)
            dist.recv(hidden, src=0)
            hidden.requires_grad_(True)
            pred = self.net(hidden)
            loss = F.l1_loss(pred, target) + 0.1 * F.mse_loss(F.avg_pool2d(pred, 8), F.avg_pool2d(target, 8))
            (loss / self.micro).backward()
            sends.append(dist.isend(hidden.grad, dst=0))
            total += loss.item() / self.micro
        for s in sends:
            s.wait()
        return total


def build(rank, micro, seed):
    torch.manual_seed(seed + rank)
    if rank == 0:
        net = encoder_stage()
        return net, FirstStage(net, micro)
    net = decoder_stage()
    return net, SecondStage(net, micro)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--micro-batches", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == 2, "one process per stage"
    np.random.seed(args.seed)
    data = ReanalysisPatches(400, args.seed)
    net, stage = build(rank, args.micro_batches, args.seed)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    began, recent = time.time(), []
    for step in range(1, args.steps + 1):
        coarse, rain = data.draw(args.batch_size)
        opt.zero_grad()
        loss = stage.run(coarse if rank == 0 else rain)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if loss is not None:
            recent.append(loss)
            if step % args.log_every == 0:
                print(f"step {step} loss {np.mean(recent[-args.log_every:]):.5f} "
                      f"{(time.time() - began) / step * 1e3:.0f} ms/step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

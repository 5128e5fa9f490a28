"""Stellar parameters (Teff, log g, [Fe/H]) from spectra with data-parallel accumulation."""
import argparse
import contextlib
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PIXELS = 1536
PATCH = 24


class Spectra(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        lines = torch.rand(60, generator=g) * PIXELS
        response = torch.randn(60, 3, generator=g)
        grid = torch.arange(PIXELS, dtype=torch.float32)
        profile = torch.exp(-0.5 * ((grid - lines[:, None]) / 3.0) ** 2)
        self.labels = torch.randn(n, 3, generator=g)
        depth = torch.sigmoid(self.labels @ response.t() - 0.5)
        self.flux = 1 - 0.6 * (depth @ profile).clamp(max=1.5)
        self.flux += 0.03 * torch.randn(self.flux.shape, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.flux[i], self.labels[i]


class SpectrumTransformer(nn.Module):
    def __init__(self, dim=128, heads=4, depth=3):
        super().__init__()
        self.patch = nn.Linear(PATCH, dim)
        self.place = nn.Parameter(torch.randn(PIXELS // PATCH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.mean, self.log_var = nn.Linear(dim, 3), nn.Linear(dim, 3)

    def forward(self, flux):
        h = self.patch(flux.unflatten(1, (-1, PATCH))) + self.place
        h = self.norm(self.body(h)).mean(1)
        return self.mean(h), self.log_var(h).clamp(-6, 4)


def nll(mean, log_var, target):
    return 0.5 * ((mean - target) ** 2 * torch.exp(-log_var) + log_var).mean()


class Session:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        data = Spectra(1500, args.seed)
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        torch.manual_seed(args.seed)
        self.model = DDP(SpectrumTransformer(), broadcast_buffers=False, gradient_as_bucket_view=True)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.02, fused=True)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, args.lr, total_steps=args.steps + 1)

    def stream(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def micro_step(self, flux, target, last):
        guard = contextlib.nullcontext() if last else self.model.no_sync()
        with guard:
            loss = nll(*self.model(flux), target) / self.args.accumulate
            loss.backward()
        return loss.detach()

    def save(self, step):
        if self.rank == 0:
            state = {"step": step, "model": self.model.module.state_dict()}
            torch.save(state, os.path.join(self.folder, "last.pt"))

    def run(self):
        stream, began = self.stream(), time.time()
        window = torch.zeros(())
        for step in range(1, self.args.steps + 1):
            for k in range(self.args.accumulate):
                flux, target = next(stream)
                window += self.micro_step(flux, target, k == self.args.accumulate - 1)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            self.sched.step()
            if step % 10 == 0:
                dist.all_reduce(window)
                if self.rank == 0:
                    print(f"step {step} nll {window.item() / 10 / self.world:.4f} "
                          f"{(time.time() - began) / step * 1e3:.0f} ms", flush=True)
                window.zero_()
            if step % 30 == 0:
                self.save(step)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=77)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        Session(args, folder).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

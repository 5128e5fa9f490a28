"""Earthquake location from station waveforms, trained against tabulated travel times."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STATIONS = 64
SAMPLES = 256


def travel_time_tables(grid, seed):
    """P and S arrival times from every node of a (z, y, x) grid to every station."""
    g = torch.Generator().manual_seed(seed)
    station = torch.rand(STATIONS, 2, generator=g) * 2 - 1
    axes = [torch.linspace(-1, 1, n) for n in grid]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    dx = x[None] - station[:, 0].view(-1, 1, 1, 1)
    dy = y[None] - station[:, 1].view(-1, 1, 1, 1)
    distance = (dx ** 2 + dy ** 2 + (0.5 * (z[None] + 1.05)) ** 2).sqrt()
    speed = 1.0 + 0.25 * (z[None] + 1)
    return distance / speed, 1.73 * distance / speed


def lookup(table, place):
    out = F.grid_sample(table[None], place.view(1, -1, 1, 1, 3), align_corners=True, padding_mode="border")
    return out.view(STATIONS, -1).t()


class Catalogue(Dataset):
    def __init__(self, n, p_table, s_table, seed):
        g = torch.Generator().manual_seed(seed)
        self.place = torch.rand(n, 3, generator=g) * 1.8 - 0.9
        self.p, self.s = lookup(p_table, self.place), lookup(s_table, self.place)
        self.seeds = torch.randint(0, 2 ** 31, (n,), generator=g)
        self.t = torch.linspace(0, 5.5, SAMPLES)

    def __len__(self):
        return len(self.place)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(self.seeds[i]))
        lag_p = self.t - self.p[i][:, None]
        lag_s = self.t - self.s[i][:, None]
        wave = torch.exp(-(lag_p / 0.08) ** 2) - 1.6 * torch.exp(-(lag_s / 0.12) ** 2)
        wave += 0.15 * torch.randn(wave.shape, generator=g)
        return wave, self.p[i], self.s[i], self.place[i]


class StationEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 9, stride=4, padding=4), nn.GELU(), nn.GroupNorm(4, width),
            nn.Conv1d(width, width, 7, stride=2, padding=3), nn.GELU(), nn.GroupNorm(4, width),
            nn.Conv1d(width, 2 * width, 5, stride=4, padding=2), nn.GELU(), nn.Flatten(),
            nn.Linear(2 * width * SAMPLES // 32, 96))

    def forward(self, wave):
        b, s, n = wave.shape
        return self.net(wave.reshape(b * s, 1, n)).view(b, s, -1)


class Locator(nn.Module):
    def __init__(self, p_table, s_table, width=24):
        super().__init__()
        self.encoder = StationEncoder(width)
        self.station = nn.Parameter(torch.randn(STATIONS, 96) * 0.1)
        self.mix = nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 3), nn.Tanh())
        self.register_buffer("p_table", p_table)
        self.register_buffer("s_table", s_table)

    def forward(self, wave):
        h = self.mix(self.encoder(wave) + self.station)
        place = self.head(h.mean(1))
        return place, lookup(self.p_table, place), lookup(self.s_table, place)


def objective(place, p, s, p_obs, s_obs, truth):
    return F.mse_loss(place, truth) + 0.3 * F.smooth_l1_loss(p, p_obs) + 0.2 * F.smooth_l1_loss(s, s_obs)


def train(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    p_table, s_table = travel_time_tables((24, 48, 48), args.seed)
    events = Catalogue(2000, p_table, s_table, args.seed)
    sampler = DistributedSampler(events, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(events, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Locator(p_table, s_table))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps + 1)
    step, epoch, began = 0, 0, time.time()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for wave, p_obs, s_obs, truth in loader:
            place, p, s = model(wave)
            loss = objective(place, p, s, p_obs, s_obs, truth)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % args.log_every == 0:
                both = torch.stack([loss.detach(), (place.detach() - truth).norm(dim=1).mean()])
                dist.all_reduce(both)
                both /= dist.get_world_size()
                if rank == 0:
                    print(f"{step} loss {both[0]:.4f} misplacement {both[1]:.3f} "
                          f"{(time.time() - began) / step:.3f} s/step", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--log-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=13)
    train(ap.parse_args())

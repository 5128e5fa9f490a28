"""Day-ahead electricity load forecasting for a set of substations with a temporal convolutional network."""
import argparse

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def build_frame(stations, days, seed):
    rng = np.random.default_rng(seed)
    idx = pd.date_range("2021-01-01", periods=24 * days, freq="h")
    hour, dow, doy = idx.hour.values, idx.dayofweek.values, idx.dayofyear.values
    temp = 10 - 9 * np.cos(2 * np.pi * doy / 365) + 4 * np.sin(2 * np.pi * (hour - 8) / 24) + rng.normal(0, 1.5, len(idx))
    cols = {}
    for s in range(stations):
        base = rng.uniform(20, 80)
        daily = 1 + 0.3 * np.sin(2 * np.pi * (hour - rng.uniform(6, 10)) / 24) - 0.15 * (dow >= 5)
        heat = 0.02 * np.maximum(16 - temp, 0) + 0.03 * np.maximum(temp - 22, 0)
        cols[f"st{s:02d}"] = base * (daily + heat + rng.normal(0, 0.03, len(idx)))
    frame = pd.DataFrame(cols, index=idx)
    frame["temp"], frame["hour"], frame["dow"] = temp, hour, dow
    return frame


class LoadWindows(Dataset):
    def __init__(self, frame, stations, history, horizon):
        load = frame[[f"st{s:02d}" for s in range(stations)]].to_numpy(np.float32)
        self.mean, self.std = load.mean(0), load.std(0)
        self.load = np.ascontiguousarray(((load - self.mean) / self.std).T)
        t = frame["temp"].to_numpy(np.float32)
        ang = 2 * np.pi * frame["hour"].to_numpy() / 24
        week = 2 * np.pi * (frame["dow"].to_numpy() + frame["hour"].to_numpy() / 24) / 7
        self.calendar = np.stack([(t - t.mean()) / t.std(), np.sin(ang), np.cos(ang), np.sin(week), np.cos(week)]).astype(np.float32)
        self.history, self.horizon = history, horizon
        self.starts = load.shape[0] - history - horizon

    def __len__(self):
        return self.starts * len(self.load)

    def __getitem__(self, i):
        s, a = divmod(i, self.starts)
        b = a + self.history
        past = np.concatenate([self.load[s:s + 1, a:b], self.calendar[:, a:b]])
        return torch.from_numpy(past), torch.from_numpy(self.calendar[:, b:b + self.horizon]), torch.from_numpy(self.load[s, b:b + self.horizon])


class CausalConv(nn.Conv1d):
    def forward(self, x):
        reach = (self.kernel_size[0] - 1) * self.dilation[0]
        return super().forward(F.pad(x, (reach, 0)))


class ResidualBlock(nn.Module):
    def __init__(self, cin, cout, kernel, dilation, dropout):
        super().__init__()
        self.c1 = CausalConv(cin, cout, kernel, dilation=dilation)
        self.c2 = CausalConv(cout, cout, kernel, dilation=dilation)
        self.drop = nn.Dropout(dropout)
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.c2(self.drop(F.relu(self.c1(x)))))
        return F.relu(y + self.skip(x))


class LoadTCN(nn.Module):
    def __init__(self, inputs, width, levels, kernel, known, horizon, dropout=0.0):
        super().__init__()
        chans = [inputs] + [width] * levels
        self.blocks = nn.Sequential(*[ResidualBlock(a, b, kernel, 2 ** i, dropout) for i, (a, b) in enumerate(zip(chans[:-1], chans[1:]))])
        self.future = nn.Sequential(nn.Flatten(), nn.Linear(known * horizon, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 2 * horizon)

    def forward(self, past, calendar):
        h = self.blocks(past)[:, :, -1]
        return self.head(torch.cat([h, self.future(calendar)], 1)).chunk(2, 1)


def gaussian_nll(mu, raw, y):
    var = F.softplus(raw) + 1e-3
    return 0.5 * (var.log() + (y - mu) ** 2 / var).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--stations", type=int, default=24)
    ap.add_argument("--history", type=int, default=168, help="hours of past load given to the network")
    ap.add_argument("--horizon", type=int, default=24)
    ap.add_argument("--levels", type=int, default=5)
    ap.add_argument("--kernel", type=int, default=3)
    ap.add_argument("--width", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=15)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    windows = LoadWindows(build_frame(args.stations, 120, args.seed), args.stations, args.history, args.horizon)
    loader = DataLoader(windows, batch_size=args.batch, shuffle=True, drop_last=True)
    net = LoadTCN(6, args.width, args.levels, args.kernel, 5, args.horizon)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=4)
    recent = []
    stream = iter(loader)
    for step in range(1, args.steps + 1):
        past, calendar, target = next(stream)
        mu, raw = net(past, calendar)
        loss = gaussian_nll(mu, raw, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recent.append(loss.item())
        if step % 10 == 0:
            plateau.step(sum(recent) / len(recent))
            mae = (mu.detach() - target).abs().mean().item()
            print(f"step {step:4d} nll {sum(recent) / len(recent):.4f} mae {mae:.4f} lr {opt.param_groups[0]['lr']:.1e}")
            recent.clear()


if __name__ == "__main__":
    main()

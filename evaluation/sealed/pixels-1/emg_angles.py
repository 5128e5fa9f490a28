"""Finger joint angles from forearm surface EMG; norm-preserving recurrence over envelope frames."""
import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    steps: int = 60
    batch: int = 24
    channels: int = 16
    window: int = 1024
    joints: int = 10
    hidden: int = 96
    lr: float = 1.5e-3
    log_every: int = 10
    seed: int = 17


class ForearmSession(Dataset):
    """One long recording; items are windows with the joint-angle track at the frame rate."""

    def __init__(self, cfg: Config, seconds: int = 120, rate: int = 1000, frame: int = 64):
        rng = np.random.default_rng(cfg.seed)
        n = seconds * rate
        knots = rng.uniform(0, 1, size=(seconds * 4 + 2, cfg.joints))
        at = np.linspace(0, knots.shape[0] - 1, n)
        angles = np.stack([np.interp(at, np.arange(knots.shape[0]), knots[:, j]) for j in range(cfg.joints)], 1)
        mixing = rng.gamma(1.0, 0.5, size=(cfg.joints, cfg.channels))
        drive = np.abs(np.gradient(angles, axis=0)) * 400 + 0.3 * angles
        emg = rng.standard_normal((n, cfg.channels)) * (drive @ mixing + 0.05)
        self.emg = torch.from_numpy(emg.T.astype(np.float32)).contiguous()
        self.angles = torch.from_numpy(angles.astype(np.float32))
        self.window, self.frame = cfg.window, frame
        self.hop = 97

    def __len__(self) -> int:
        return (self.emg.shape[1] - self.window) // self.hop

    def __getitem__(self, i: int):
        lo = i * self.hop
        x = self.emg[:, lo:lo + self.window]
        ends = torch.arange(lo + self.frame - 1, lo + self.window, self.frame)
        keep = (torch.rand(x.shape[0], 1) > 0.05).to(x.dtype)
        return x * keep, self.angles[ends]


class EnvelopeStem(nn.Module):
    def __init__(self, channels: int, width: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, width, 9, stride=2, padding=4), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv1d(width, width, 9, stride=4, padding=4), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv1d(width, width, 9, stride=8, padding=4), nn.GroupNorm(4, width), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).transpose(1, 2)


class UnitaryCell(nn.Module):
    """h' = modrelu(Q h + V x) with Q orthogonal."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.drive = nn.Linear(inputs, hidden)
        recur = nn.Linear(hidden, hidden, bias=False)
        nn.init.orthogonal_(recur.weight)
        self.recur = parametrizations.orthogonal(recur)
        self.threshold = nn.Parameter(torch.full((hidden,), -0.01))

    def activate(self, z: Tensor) -> Tensor:
        return torch.sign(z) * torch.relu(z.abs() + self.threshold)

    def forward(self, driven: Tensor, h: Tensor) -> Tensor:
        return self.activate(self.recur(h) + driven)


class AngleDecoder(nn.Module):
    def __init__(self, cfg: Config, width: int = 96):
        super().__init__()
        self.stem = EnvelopeStem(cfg.channels, width)
        self.cell = UnitaryCell(width, cfg.hidden)
        self.start = nn.Parameter(torch.zeros(cfg.hidden))
        self.readout = nn.Sequential(nn.Linear(cfg.hidden + width, 128), nn.GELU(),
                                     nn.Linear(128, cfg.joints), nn.Sigmoid())

    def forward(self, emg: Tensor) -> Tensor:
        frames = self.stem(emg)
        driven = self.cell.drive(frames)
        h = self.start.expand(emg.shape[0], -1)
        states = []
        for x in driven.unbind(1):
            h = self.cell(x, h)
            states.append(h)
        return self.readout(torch.cat([torch.stack(states, 1), frames], -1))


def angle_loss(pred: Tensor, target: Tensor) -> Tensor:
    position = nn.functional.smooth_l1_loss(pred, target, beta=0.1)
    velocity = nn.functional.l1_loss(pred.diff(dim=1), target.diff(dim=1))
    return position + 0.5 * velocity


def windows(cfg: Config, session: ForearmSession):
    gen = torch.Generator().manual_seed(cfg.seed)
    loader = DataLoader(session, cfg.batch, shuffle=True, drop_last=True, generator=gen)
    while True:
        for pair in loader:
            yield pair


def fit(cfg: Config):
    torch.manual_seed(cfg.seed)
    session = ForearmSession(cfg)
    model = AngleDecoder(cfg)
    recurrent = list(model.cell.recur.parameters())
    ids = {id(p) for p in recurrent}
    other = [p for p in model.parameters() if id(p) not in ids]
    opt = torch.optim.RMSprop([{"params": other}, {"params": recurrent, "lr": cfg.lr * 0.1}],
                              lr=cfg.lr, alpha=0.95)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=max(1, cfg.steps // 3), gamma=0.5)
    for step, (emg, angles) in zip(range(1, cfg.steps + 1), windows(cfg, session)):
        loss = angle_loss(model(emg), angles)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % cfg.log_every == 0 or step == 1:
            print(f"step={step} loss={loss.item():.6f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in Config().__dict__.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    fit(Config(**vars(parser.parse_args())))

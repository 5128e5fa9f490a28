"""Seizure detection on multi-channel EEG windows with a recurrent classifier."""
import argparse
import contextlib
import time

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

CHANNELS = 18
FRAMES = 40
FRAME_LEN = 8


class EEGWindows:
    """Windows of band-limited background activity; a spike-wave train marks seizures."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        samples = FRAMES * FRAME_LEN
        t = torch.arange(samples) / 128.0
        phase = 6.28 * torch.rand(count, CHANNELS, 1, generator=gen)
        freq = 8 + 4 * torch.rand(count, CHANNELS, 1, generator=gen)
        signal = torch.sin(6.28 * freq * t + phase)
        signal += 0.7 * torch.randn(count, CHANNELS, samples, generator=gen)
        self.label = (torch.rand(count, generator=gen) < 0.4).float()
        spikes = torch.sin(6.28 * 3.0 * t).clamp_min(0).pow(6)
        gain = torch.rand(count, CHANNELS, 1, generator=gen)
        signal += 1.2 * self.label.view(-1, 1, 1) * gain * spikes
        signal = (signal - signal.mean(-1, keepdim=True)) / signal.std(-1, keepdim=True)
        frames = signal.view(count, CHANNELS, FRAMES, FRAME_LEN).permute(2, 0, 1, 3)
        self.frames = frames.reshape(FRAMES, count, CHANNELS * FRAME_LEN).contiguous()
        self.gen = gen

    def batch(self, size):
        rows = torch.randint(0, self.label.numel(), (size,), generator=self.gen)
        return self.frames[:, rows], self.label[rows]


class GatedCell(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.gates = weight_norm(nn.Linear(hidden, 2 * hidden))
        self.candidate = weight_norm(nn.Linear(hidden, hidden))

    def forward(self, drive, state):
        drive_gates, drive_cand = drive
        reset, update = torch.sigmoid(drive_gates + self.gates(state)).chunk(2, dim=-1)
        proposal = torch.tanh(drive_cand + self.candidate(reset * state))
        return torch.lerp(proposal, state, update)


class SeizureNet(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Sequential(nn.Linear(CHANNELS * FRAME_LEN, 96), nn.GELU(), nn.LayerNorm(96))
        self.project = nn.Linear(96, 3 * hidden)
        self.cell = GatedCell(hidden)
        self.head = nn.Linear(2 * hidden, 1)

    def forward(self, frames):
        drive = self.project(self.embed(frames))
        state = frames.new_zeros(frames.shape[1], self.hidden)
        peak = state
        for step_drive in drive.unbind(0):
            parts = step_drive.split((2 * self.hidden, self.hidden), dim=-1)
            state = self.cell(parts, state)
            peak = torch.maximum(peak, state)
        return self.head(torch.cat((state, peak), dim=-1)).squeeze(-1)


def train(args):
    torch.manual_seed(11)
    data = EEGWindows(512, seed=11)
    net = SeizureNet()
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.5))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    scope = parametrize.cached if args.fixed else contextlib.nullcontext
    tic, spent = 0.0, 0.0
    for step in range(args.steps):
        tic = time.perf_counter()
        frames, label = data.batch(20)
        with scope():
            logits = net(frames)
        loss = criterion(logits, label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step >= 10:
            spent += time.perf_counter() - tic
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    print(f"final loss {loss.item():.5f}")
    print(f"step_ms={1000 * spent / max(1, args.steps - 10):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    train(parser.parse_args())

"""Radar nowcasting with a convolutional LSTM: six frames in, six frames out."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class RadarEvents:
    """Advected Gaussian rain cells that grow and decay; sequences are drawn from longer events."""

    def __init__(self, events, frames, size, seed):
        g = torch.Generator().manual_seed(seed)
        grid = torch.arange(size).float()
        cells = 5
        pos = size * torch.rand(events, cells, 2, 1, generator=g)
        vel = 1.2 * torch.randn(events, 1, 2, 1, generator=g) + 0.3 * torch.randn(events, cells, 2, 1, generator=g)
        rad = 2 + 4 * torch.rand(events, cells, 1, generator=g)
        t = torch.arange(frames).float()
        centre = (pos + vel * t) % size
        peak = torch.sin(torch.pi * (t / frames * (0.5 + torch.rand(events, cells, 1, generator=g)))).clamp(min=0)
        seq = torch.zeros(events, frames, size, size)
        for c in range(cells):
            d = [torch.exp(-(grid - centre[:, c, k, :, None]) ** 2 / (2 * rad[:, c, :, None] ** 2)) for k in range(2)]
            seq += peak[:, c, :, None, None] * d[0].unsqueeze(3) * d[1].unsqueeze(2)
        self.seq = (seq / 2).clamp(0, 1).to(torch.float16)
        self.gen = g

    def draw(self, batch, length):
        e = torch.randint(len(self.seq), (batch, 1), generator=self.gen)
        t = torch.randint(self.seq.shape[1] - length, (batch, 1), generator=self.gen)
        return self.seq[e, t + torch.arange(length)].float()


class ConvLSTMCell(nn.Module):
    def __init__(self, cin, hidden, k=3):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(cin + hidden, 4 * hidden, k, padding=k // 2)

    def start(self, x):
        z = x.new_zeros(x.shape[0], self.hidden, *x.shape[-2:])
        return z, z

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class Nowcaster(nn.Module):
    def __init__(self, width=24, hidden=32):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.enc, self.dec = ConvLSTMCell(width, hidden), ConvLSTMCell(width, hidden)
        self.up = nn.Sequential(nn.Conv2d(hidden, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 16, 1), nn.PixelShuffle(4))

    def forward(self, past, horizon):
        b, t = past.shape[:2]
        z = self.down(past.reshape(b * t, 1, *past.shape[2:])).unflatten(0, (b, t))
        state = self.enc.start(z[:, 0])
        for k in range(t):
            state = self.enc(z[:, k], state)
        frame, out = past[:, -1:], []
        for _ in range(horizon):
            state = self.dec(self.down(frame), state)
            frame = frame + self.up(state[0])
            out.append(frame)
        return torch.cat(out, 1)


def weighted_error(pred, true):
    w = 1 + 4 * (true > 0.2).float() + 8 * (true > 0.5).float()
    e = pred - true
    return (w * (e.square() + e.abs())).mean()


def csi(pred, true, level=0.2):
    p, t = pred > level, true > level
    return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--past", type=int, default=6)
    ap.add_argument("--horizon", type=int, default=6)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=52)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    radar = RadarEvents(80, 30, args.size, args.seed)
    model = Nowcaster().to(memory_format=torch.channels_last)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    for step in range(1, args.steps + 1):
        seq = radar.draw(args.batch, args.past + args.horizon)
        past, future = seq[:, : args.past], seq[:, args.past:]
        pred = model(past, args.horizon)
        loss = weighted_error(pred, future)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0:
            print(f"step {step:4d} error {loss.item():.4f} csi {csi(pred.detach(), future):.3f}")


if __name__ == "__main__":
    main()

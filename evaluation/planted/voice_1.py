"""Voice conversion decoder conditioned on a speaker embedding."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def film_mlp(n_in, n_hidden, n_out):
    return nn.Sequential(nn.Linear(n_in, n_hidden), nn.SiLU(), nn.Linear(n_hidden, 2 * n_out))


class ConditionedConv(nn.Module):
    def __init__(self, ch, spk_dim, compact):
        super().__init__()
        self.conv = nn.Conv1d(ch, ch, 3, padding=1)
        self.norm = nn.LayerNorm(ch)
        self.film = film_mlp(spk_dim, 96, ch)
        self.compact = compact

    def forward(self, x, spk):
        if self.compact:
            mod = self.film(spk).unsqueeze(1)
        else:
            frames = spk.unsqueeze(1).expand(-1, x.shape[1], -1)
            mod = self.film(frames)
        scale, shift = mod.chunk(2, -1)
        h = self.norm(x) * (1 + scale) + shift
        return x + F.silu(self.conv(h.transpose(1, 2))).transpose(1, 2)


class Converter(nn.Module):
    def __init__(self, n_speakers=30, content=32, n_mels=40, ch=64, depth=3, compact=False):
        super().__init__()
        self.spk = nn.Embedding(n_speakers, 48)
        self.inp = nn.Linear(content, ch)
        self.blocks = nn.ModuleList(ConditionedConv(ch, 48, compact) for _ in range(depth))
        self.out = nn.Linear(ch, n_mels)

    def forward(self, content, speaker):
        spk = self.spk(speaker)
        h = self.inp(content)
        for blk in self.blocks:
            h = blk(h, spk)
        return self.out(h)


class Utterances:
    def __init__(self, n=160, frames=100):
        self.speaker = torch.randint(0, 30, (n,))
        self.content = torch.randn(n, frames, 32).cumsum(1) * 0.1
        timbre = 1 + 0.4 * torch.randn(30, 1, 40)
        self.mel = torch.tanh(self.content @ torch.randn(32, 40) * 0.3) * timbre[self.speaker]

    def segment(self, k, length=80):
        i = torch.randint(0, len(self.speaker), (k,))
        lo = int(torch.randint(0, self.mel.shape[1] - length + 1, ()))
        return self.content[i, lo:lo + length], self.speaker[i], self.mel[i, lo:lo + length]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(197)
    data, net = Utterances(), Converter(compact=args.fixed)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    for step in range(args.steps):
        content, speaker, mel = data.segment(12)
        out = net(content, speaker)
        loss = F.l1_loss(out, mel) + 0.5 * F.l1_loss(out.diff(dim=1), mel.diff(dim=1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 5 == 0:
            print(f"step {step} l1 {loss.item():.5f}")


if __name__ == "__main__":
    main()

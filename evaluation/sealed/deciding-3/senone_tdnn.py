# Frame-level senone classifier (factorised TDNN) trained on chunks with alignments.
import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SENONES, FEATS, CHUNK, CONTEXT = 400, 40, 100, 14


class AlignedCorpus:
    """Feature matrices and forced alignments of whole utterances, concatenated in memory."""

    def __init__(self, n_utts=120, seed=0):
        rng = np.random.default_rng(seed)
        lens = rng.integers(250, 700, n_utts)
        self.ends = np.cumsum(lens)
        total = int(self.ends[-1])
        dur = rng.integers(3, 11, total // 3)
        seq = rng.integers(0, SENONES, len(dur))
        self.align = np.repeat(seq, dur)[:total]
        centre = rng.standard_normal((SENONES, FEATS)).astype(np.float32)
        feats = centre[self.align] + rng.standard_normal((total, FEATS), dtype=np.float32)
        self.feats = torch.from_numpy(feats)
        self.align = torch.from_numpy(self.align)
        spans = []
        start = 0
        for end in self.ends:
            spans.extend(range(start + CONTEXT, end - CHUNK - CONTEXT, CHUNK // 2))
            start = int(end)
        self.spans = torch.tensor(spans)

    def chunks(self, size, gen):
        wide = torch.arange(-CONTEXT, CHUNK + CONTEXT)
        core = torch.arange(CHUNK)
        while True:
            for i in torch.randperm(len(self.spans), generator=gen).split(size):
                if len(i) == size:
                    s = self.spans[i][:, None]
                    yield self.feats[s + wide], self.align[s + core]


class FactorisedLayer(nn.Module):
    """Two-tap factorised convolution with a low-rank bottleneck."""

    def __init__(self, dim, bottleneck, stride):
        super().__init__()
        self.down = nn.Conv1d(dim, bottleneck, 2, dilation=stride, bias=False)
        self.up = nn.Conv1d(bottleneck, dim, 2, dilation=stride)
        self.norm = nn.BatchNorm1d(dim)
        self.trim = stride

    def forward(self, x):
        y = self.norm(F.relu(self.up(self.down(x))))
        return y + 0.66 * x[..., self.trim:-self.trim]


class SenoneTDNN(nn.Module):
    def __init__(self, dim=192, bottleneck=64, strides=(1, 1, 2, 3, 3, 3)):
        super().__init__()
        self.lda = nn.Conv1d(FEATS, dim, 3)
        self.layers = nn.ModuleList(FactorisedLayer(dim, bottleneck, s) for s in strides)
        self.prefinal = nn.Conv1d(dim, 128, 1)
        self.out = nn.Conv1d(128, SENONES, 1)

    def forward(self, feats):
        x = F.relu(self.lda(feats.transpose(1, 2)))
        for layer in self.layers:
            x = layer(x)
        return self.out(F.relu(self.prefinal(x)))


def spec_mask(x, gen, width=8):
    f0 = int(torch.randint(0, FEATS - width, (1,), generator=gen))
    x[..., f0:f0 + width] = 0
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--minibatch", type=int, default=16)
    ap.add_argument("--lr-start", type=float, default=2e-3)
    ap.add_argument("--lr-end", type=float, default=2e-4)
    args = ap.parse_args()
    torch.manual_seed(10)
    gen = torch.Generator().manual_seed(10)
    corpus = AlignedCorpus()
    net = SenoneTDNN()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr_start, fused=True)
    gamma = (args.lr_end / args.lr_start) ** (1 / max(1, args.steps))
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma)
    for step, (x, y) in enumerate(corpus.chunks(args.minibatch, gen), 1):
        logits = net(spec_mask(x, gen))
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            acc = (logits.argmax(1) == y).float().mean().item()
            print(f"minibatch {step} xent {loss.item():.4f} frame acc {acc:.4f}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()

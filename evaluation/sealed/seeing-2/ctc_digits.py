import argparse
import math
import string
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

ALPHABET = "_" + string.ascii_lowercase + " '"
WORDS = ("zero one two three four five six seven eight nine oh double hundred thousand point "
         "minus plus equals times over").split()


class SyntheticReadings:
    """Filter-bank features for read number strings: each character emits a few noisy frames."""

    def __init__(self, n, mels, seed):
        rng = np.random.default_rng(seed)
        self.codes = rng.normal(0, 1, (len(ALPHABET), mels)).astype(np.float32)
        self.items = []
        for _ in range(n):
            text = " ".join(rng.choice(WORDS, int(rng.integers(18, 24))))
            ids = np.array([ALPHABET.index(c) for c in text])
            frames = np.repeat(self.codes[ids], rng.integers(3, 6, len(ids)), axis=0)
            frames += rng.normal(0, 0.7, frames.shape).astype(np.float32)
            self.items.append((torch.from_numpy(frames), torch.from_numpy(ids), text))
        self.items.sort(key=lambda it: len(it[0]))

    def buckets(self, size, gen):
        starts = list(range(0, len(self.items) - size + 1, size))
        while True:
            for k in torch.randperm(len(starts), generator=gen).tolist():
                yield self.items[starts[k]:starts[k] + size]


def assemble(items):
    feats = pad_sequence([i[0] for i in items], batch_first=True)
    flen = torch.tensor([len(i[0]) for i in items])
    targets = torch.cat([i[1] for i in items])
    tlen = torch.tensor([len(i[1]) for i in items])
    return feats, flen, targets, tlen, [i[2] for i in items]


class ConvSubsample(nn.Module):
    def __init__(self, mels, dim):
        super().__init__()
        self.c1 = nn.Conv1d(mels, dim, 5, stride=1, padding=2)
        self.c2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x):
        return F.gelu(self.c2(F.gelu(self.c1(x.transpose(1, 2))))).transpose(1, 2)


class GatedConvBlock(nn.Module):
    def __init__(self, dim, kernel):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.dw = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.down = nn.Linear(dim, dim)

    def forward(self, x):
        y = F.glu(self.up(self.norm(x)), -1)
        y = F.silu(self.dw(y.transpose(1, 2))).transpose(1, 2)
        return x + self.down(y)


class AcousticModel(nn.Module):
    def __init__(self, mels, dim, blocks):
        super().__init__()
        self.front = ConvSubsample(mels, dim)
        self.blocks = nn.Sequential(*[GatedConvBlock(dim, 9) for _ in range(blocks)])
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, len(ALPHABET)))

    def forward(self, feats, flen):
        x = self.blocks(self.front(feats))
        return self.out(x).log_softmax(-1), (flen + 1) // 2


def collapse(ids):
    out, prev = [], 0
    for i in ids:
        if i != prev and i != 0:
            out.append(ALPHABET[i])
        prev = i
    return "".join(out)


def greedy(log_probs, lengths):
    best = log_probs.argmax(-1)
    return [collapse(best[b, :n].tolist()) for b, n in enumerate(lengths.tolist())]


def levenshtein(ref, hyp):
    prev = list(range(len(hyp) + 1))
    for i, r in enumerate(ref, 1):
        cur = [i]
        for j, h in enumerate(hyp, 1):
            cur.append(min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + (r != h)))
        prev = cur
    return prev[-1]


def char_error_rate(refs, hyps):
    return sum(levenshtein(r, h) for r, h in zip(refs, hyps)) / sum(len(r) for r in refs)


def char_accuracy_proxy(log_probs):
    return log_probs.exp().amax(-1).mean()


def noam(step, dim, warm):
    return dim ** -0.5 * min((step + 1) ** -0.5, (step + 1) * warm ** -1.5)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--mels", type=int, default=40)
    ap.add_argument("--dim", type=int, default=112)
    ap.add_argument("--blocks", type=int, default=4)
    ap.add_argument("--warm", type=int, default=25)
    ap.add_argument("--report", type=int, default=10)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    data = SyntheticReadings(320, args.mels, args.seed)
    stream = data.buckets(args.batch, torch.Generator().manual_seed(args.seed))
    model = AcousticModel(args.mels, args.dim, args.blocks)
    with torch.no_grad():
        model.out[1].bias[0] = -1.0
    opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.5 * noam(s, args.dim, args.warm))
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    for step in range(1, args.steps + 1):
        feats, flen, targets, tlen, texts = assemble(next(stream))
        log_probs, olen = model(feats + 0.1 * torch.randn_like(feats), flen)
        loss = ctc(log_probs.transpose(0, 1), targets, olen, tlen)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        if math.isfinite(gnorm.item()):
            opt.step()
        sched.step()
        hyps = greedy(log_probs.detach(), olen)
        stats = {
            "loss": loss.item(),
            "cer": char_error_rate(texts, hyps),
            "conf": char_accuracy_proxy(log_probs.detach()).item(),
            "lr": sched.get_last_lr()[0],
        }
        if step % args.report == 0:
            print(f"{step:5d} " + "  ".join(f"{k} {v:.4f}" for k, v in stats.items()))
            print(f"      ref: {texts[0][:50]}\n      hyp: {hyps[0][:50]}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""CTC speech model: conv front end, GRU, random time/frequency masking per batch."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

MELS, VOCAB = 40, 28


class SpecMask(nn.Module):
    """One time stripe and one frequency stripe per utterance, fresh positions in each batch."""

    def __init__(self, time=12, freq=6):
        super().__init__()
        self.time, self.freq = time, freq

    def stripe(self, n, length, width):
        start = torch.randint(0, length - width, (n, 1))
        pos = torch.arange(length)
        return (pos >= start) & (pos < start + torch.randint(1, width + 1, (n, 1)))

    def forward(self, x):
        if not self.training:
            return x
        t = self.stripe(len(x), x.shape[1], self.time)
        f = self.stripe(len(x), x.shape[2], self.freq)
        return x.masked_fill(t[:, :, None] | f[:, None, :], 0.0)


class Listener(nn.Module):
    def __init__(self, width=112):
        super().__init__()
        self.mask = SpecMask()
        self.front = nn.Conv1d(MELS, width, 5, 2, 2)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.norm, self.drop, self.out = nn.LayerNorm(width), nn.Dropout(0.1), nn.Linear(width, VOCAB)

    def forward(self, x, lens):
        h = F.relu(self.front(self.mask(x).transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(self.drop(self.norm(h))).log_softmax(-1).transpose(0, 1), (lens + 1) // 2


class Corpus:
    def __init__(self, n=120, frames=110):
        self.x = torch.randn(n, frames, MELS)
        self.lens = torch.randint(frames - 10, frames + 1, (n,))
        self.tgt = torch.randint(1, VOCAB, (n, 14))
        self.tgt_lens = torch.randint(8, 15, (n,))

    def batch(self, k):
        i = torch.randint(0, len(self.x), (k,))
        top = int(self.lens[i].max())
        return self.x[i, :top], self.lens[i], self.tgt[i], self.tgt_lens[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(331)
    corpus, net = Corpus(), Listener()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=args.steps + 1)
    for step in range(args.steps):
        x, lens, tgt, tgt_lens = corpus.batch(8)
        logp, out_lens = net(x, lens)
        loss = F.ctc_loss(logp, tgt, out_lens, tgt_lens, zero_infinity=True)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        sched.step()
        if step % 5 == 4:
            print(f"step {step + 1} ctc {loss.item():.5f} grad {norm.item():.4f}")


if __name__ == "__main__":
    main()

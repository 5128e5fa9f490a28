"""Compress a translation transformer: word-level distillation into a narrow student."""
import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x, memory, mask=None, causal=False):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).view(b, memory.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o(out.transpose(1, 2).reshape(b, t, d))


def feed_forward(d):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))


class EncoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm, self.attn, self.ff = nn.LayerNorm(d), Attention(d, heads), feed_forward(d)

    def forward(self, x, mask):
        y = self.norm(x)
        x = x + self.attn(y, y, mask)
        return x + self.ff(x)


class DecoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.own, self.cross, self.ff = Attention(d, heads), Attention(d, heads), feed_forward(d)

    def forward(self, x, memory, mask):
        y = self.n1(x)
        x = x + self.own(y, y, causal=True)
        x = x + self.cross(self.n2(x), memory, mask)
        return x + self.ff(x)


class Translator(nn.Module):
    def __init__(self, vocab, d, heads, layers, max_len=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=PAD)
        nn.init.normal_(self.embed.weight, std=d ** -0.5)
        self.place = nn.Parameter(0.02 * torch.randn(max_len, d))
        self.encoder = nn.ModuleList(EncoderLayer(d, heads) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(d, heads) for _ in range(layers))
        self.norm_e, self.norm_d = nn.LayerNorm(d), nn.LayerNorm(d)
        self.scale = math.sqrt(d)

    def forward(self, src, tgt_in):
        mask = (src != PAD)[:, None, None, :]
        x = self.embed(src) * self.scale + self.place[:src.shape[1]]
        for layer in self.encoder:
            x = layer(x, mask)
        memory = self.norm_e(x)
        y = self.embed(tgt_in) * self.scale + self.place[:tgt_in.shape[1]]
        for layer in self.decoder:
            y = layer(y, memory, mask)
        return F.linear(self.norm_d(y), self.embed.weight)


class ParallelText:
    """Synthetic bitext; pairs are grouped by length so that batches carry little padding."""

    def __init__(self, vocab, pairs, seed):
        rng = np.random.default_rng(seed)
        mapping = rng.permutation(np.arange(3, vocab))
        self.pairs = []
        for _ in range(pairs):
            n = int(rng.integers(8, 28))
            src = np.minimum(rng.zipf(1.3, n) + 2, vocab - 1)
            tgt = mapping[src - 3][::-1]
            self.pairs.append((src, np.concatenate([[BOS], tgt, [EOS]])))
        self.pairs.sort(key=lambda p: len(p[0]))
        self.rng = rng

    @staticmethod
    def pad(rows):
        out = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int64)
        for i, r in enumerate(rows):
            out[i, :len(r)] = r
        return torch.from_numpy(out)

    def stream(self, size):
        starts = np.arange(0, len(self.pairs) - size + 1, size)
        while True:
            for s in self.rng.permutation(starts):
                chunk = self.pairs[s:s + size]
                yield self.pad([c[0] for c in chunk]), self.pad([c[1] for c in chunk])


class DistillationObjective(nn.Module):
    def __init__(self, teacher, temperature, weight):
        super().__init__()
        self.teacher = teacher.eval()
        self.temperature, self.weight = temperature, weight

    def forward(self, student_logits, src, tgt):
        labels = tgt[:, 1:]
        real = labels != PAD
        own = student_logits[real]
        hard = F.cross_entropy(own, labels[real])
        reference = self.teacher(src, tgt[:, :-1])[real]
        t = self.temperature
        soft = F.kl_div(F.log_softmax(own / t, -1), F.softmax(reference / t, -1), reduction="batchmean")
        return (1 - self.weight) * hard + self.weight * t * t * soft, hard


def load_teacher(vocab, folder):
    teacher = Translator(vocab, d=128, heads=4, layers=2)
    path = os.path.join(folder, f"teacher_{vocab}_128x2.pt")
    if not os.path.exists(path):
        torch.save(teacher.state_dict(), path)
    teacher.load_state_dict(torch.load(path))
    return teacher


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--vocab", type=int, default=3000)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--temperature", type=float, default=2.0)
    ap.add_argument("--soft-weight", type=float, default=0.7)
    args = ap.parse_args()
    torch.manual_seed(4)
    text = ParallelText(args.vocab, 5000, seed=4)
    with tempfile.TemporaryDirectory() as folder:
        objective = DistillationObjective(load_teacher(args.vocab, folder), args.temperature, args.soft_weight)
    student = Translator(args.vocab, d=128, heads=4, layers=2)
    opt = torch.optim.Adam(student.parameters(), lr=7e-4, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 30, math.sqrt(30 / (s + 1))))

    for step, (src, tgt) in enumerate(text.stream(args.batch), 1):
        loss, hard = objective(student(src, tgt[:, :-1]), src, tgt)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        opt.step()
        warm.step()
        if step % 10 == 0:
            print(f"{step:4d} total {loss.item():.4f} ce {hard.item():.4f} gnorm {norm.item():.3f}")
        if step >= args.steps:
            return


if __name__ == "__main__":
    main()

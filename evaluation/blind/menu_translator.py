"""Attention seq2seq with input feeding for translating restaurant menu lines."""
import argparse
import random
import time
from itertools import chain, repeat

import torch
import torch.nn as nn
import torch.nn.functional as F

BOS, EOS = 1, 2
VOCAB = 1500


def build_corpus(n=6000, seed=4):
    rng = random.Random(seed)
    lexicon = list(range(3, VOCAB))
    rng.shuffle(lexicon)
    pairs = []
    for _ in range(n):
        src = [3 + min(VOCAB - 4, int(rng.expovariate(0.01))) for _ in range(rng.randint(6, 13))]
        tgt = [lexicon[w - 3] for w in src]
        if rng.random() < 0.3:
            tgt[0], tgt[1] = tgt[1], tgt[0]
        pairs.append((src, tgt))
    return pairs


class LengthBuckets:
    """Groups pairs of equal source length, pre-tensorised, and yields shuffled batches."""

    def __init__(self, pairs, batch, seed=9):
        self.batch, self.rng = batch, random.Random(seed)
        grouped = {}
        for src, tgt in pairs:
            grouped.setdefault(len(src), []).append((src, [BOS] + tgt + [EOS]))
        self.buckets = [(torch.tensor([s for s, _ in rows]), torch.tensor([t for _, t in rows]))
                        for _, rows in sorted(grouped.items())]

    def __iter__(self):
        plan = []
        for b, (src, _) in enumerate(self.buckets):
            order = torch.tensor(self.rng.sample(range(len(src)), len(src)))
            plan.extend((b, rows) for rows in order.split(self.batch) if len(rows) == self.batch)
        self.rng.shuffle(plan)
        for b, rows in plan:
            yield self.buckets[b][0][rows], self.buckets[b][1][rows]


class InputFeedingDecoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.combine = nn.Linear(2 * dim, dim)

    def forward(self, tokens, memory, keys, state):
        feed = torch.zeros_like(state)
        attended = []
        for emb in self.embed(tokens).unbind(1):
            state = self.cell(torch.cat([emb, feed], dim=1), state)
            weights = torch.bmm(keys, state.unsqueeze(2)).softmax(dim=1)
            context = (weights * memory).sum(1)
            feed = torch.tanh(self.combine(torch.cat([context, state], dim=1)))
            attended.append(feed)
        return torch.stack(attended, dim=1)


class MenuTranslator(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.encoder = nn.GRU(dim, dim // 2, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.decoder = InputFeedingDecoder(dim)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, src, tgt_in):
        memory, last = self.encoder(self.embed(src))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=1)))
        return self.out(self.decoder(tgt_in, memory, self.key(memory), state))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(2)
    stream = chain.from_iterable(repeat(LengthBuckets(build_corpus(), batch=24)))
    model = MenuTranslator()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=40)

    running, durations = torch.zeros(()), []
    for step in range(1, args.steps + 1):
        tick = time.perf_counter()
        src, tgt = next(stream)
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        warmup.step()
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {running.item() / 50:.4f}")
            running.zero_()
        durations.append(time.perf_counter() - tick)
    print(f"step_ms={1000 * sum(durations[10:]) / max(1, len(durations[10:])):.2f}")


if __name__ == "__main__":
    main()

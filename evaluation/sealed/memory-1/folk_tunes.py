#!/usr/bin/env python
"""Stateful recurrent language model over tunes in ABC-like notation."""
import argparse
import collections
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "ABCDEFGabcdefg|:/2348 zZ^_=[]'\n"


def compose(n_chars, seed):
    """Order-2 Markov chain over the alphabet, so that context really helps."""
    rng = np.random.default_rng(seed)
    v = len(ALPHABET)
    table = rng.dirichlet(np.full(v, 0.08), size=(v, v)).cumsum(-1)
    draws = rng.random(n_chars)
    out = np.empty(n_chars, dtype=np.int64)
    a, b = 0, 1
    for i in range(n_chars):
        c = min(int(np.searchsorted(table[a, b], draws[i])), v - 1)
        out[i] = c
        a, b = b, c
    return out


class ParallelStreams:
    """Cuts the corpus into `rows` parallel streams and walks along them in windows."""

    def __init__(self, corpus, rows, window):
        usable = (len(corpus) - 1) // rows * rows
        self.x = torch.from_numpy(corpus[:usable]).view(rows, -1)
        self.y = torch.from_numpy(corpus[1:usable + 1]).view(rows, -1)
        self.window = window

    def __iter__(self):
        while True:
            for s in range(0, self.x.shape[1] - self.window, self.window):
                yield s == 0, self.x[:, s:s + self.window], self.y[:, s:s + self.window]


class TuneModel(nn.Module):
    def __init__(self, vocab, embed=96, hidden=224, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        self.rnn = nn.GRU(embed, hidden, num_layers=layers, batch_first=True, dropout=dropout)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, vocab)

    def start(self, rows):
        return torch.zeros(self.rnn.num_layers, rows, self.rnn.hidden_size)

    def forward(self, tokens, state):
        h, state = self.rnn(self.embed(tokens), state)
        return self.out(self.norm(h)), state


@torch.no_grad()
def sample(model, length, generator):
    model.eval()
    token, state, text = torch.zeros(1, 1, dtype=torch.long), model.start(1), []
    for _ in range(length):
        logits, state = model(token, state)
        token = torch.multinomial(logits[:, -1].softmax(-1), 1, generator=generator)
        text.append(ALPHABET[token.item()])
    model.train()
    return "".join(text)


def train(opts):
    torch.manual_seed(opts.seed)
    corpus = compose(160_000, opts.seed)
    streams = ParallelStreams(corpus, opts.rows, opts.window)
    model = TuneModel(len(ALPHABET))
    optimizer = torch.optim.Adam(model.parameters(), lr=opts.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=opts.steps)
    recent = collections.deque(maxlen=20)
    history = []
    state, began = model.start(opts.rows), time.time()

    for step, (fresh, x, y) in enumerate(streams, 1):
        state = model.start(opts.rows) if fresh else state.detach()
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        recent.append(loss.detach())
        history.append(loss.item())
        if step % 10 == 0:
            mean = torch.stack(tuple(recent)).mean().item()
            print(f"step {step:4d} | loss {history[-1]:.4f} | mean20 {mean:.4f} | "
                  f"bits/char {mean / np.log(2):.3f} | {time.time() - began:.1f}s")
        if step == opts.steps:
            break
    print("sample:", repr(sample(model, 40, torch.Generator().manual_seed(1))))
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=21)
    train(parser.parse_args())

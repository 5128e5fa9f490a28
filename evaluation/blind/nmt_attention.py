"""Sequence transduction (reverse + shift cipher) with an additive-attention GRU decoder."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS = 0, 1, 2
SPECIALS = 3


def make_pairs(n, vocab, min_len, max_len, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(n):
        src = [rng.randrange(SPECIALS, vocab) for _ in range(rng.randint(min_len, max_len))]
        key = src[0] - SPECIALS
        tgt = [(tok - SPECIALS + key) % (vocab - SPECIALS) + SPECIALS for tok in reversed(src)]
        pairs.append((torch.tensor(src), torch.tensor([BOS] + tgt + [EOS])))
    return pairs


def batches(pairs, batch_size, rng):
    order = list(range(len(pairs)))
    rng.shuffle(order)
    pool = batch_size * 16
    for start in range(0, len(order), pool):
        chunk = sorted(order[start:start + pool], key=lambda i: len(pairs[i][0]))
        groups = [chunk[i:i + batch_size] for i in range(0, len(chunk), batch_size)]
        rng.shuffle(groups)
        for g in groups:
            src = pad_sequence([pairs[i][0] for i in g], batch_first=True, padding_value=PAD)
            tgt = pad_sequence([pairs[i][1] for i in g], batch_first=True, padding_value=PAD)
            yield src, tgt


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, src):
        out, last = self.rnn(self.embed(src))
        return out, torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=1)))


class AdditiveAttention(nn.Module):
    def __init__(self, query_dim, key_dim, attn_dim):
        super().__init__()
        self.w_query = nn.Linear(query_dim, attn_dim, bias=False)
        self.w_key = nn.Linear(key_dim, attn_dim)
        self.score = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, keys, mask):
        energy = torch.tanh(self.w_query(query).unsqueeze(1) + self.w_key(keys))
        scores = self.score(energy).squeeze(2).masked_fill(mask, float("-inf"))
        weights = F.softmax(scores, dim=1)
        context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
        return context, weights


class Decoder(nn.Module):
    def __init__(self, vocab, emb, hidden, attn_dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.attention = AdditiveAttention(hidden, 2 * hidden, attn_dim)
        self.cell = nn.GRUCell(emb + 2 * hidden, hidden)
        self.readout = nn.Linear(3 * hidden, emb)
        self.out = nn.Linear(emb, vocab)

    def forward(self, tgt_in, state, memory, mask):
        emb = self.embed(tgt_in)
        features = []
        for t in range(tgt_in.shape[1]):
            context, _ = self.attention(state, memory, mask)
            state = self.cell(torch.cat([emb[:, t], context], dim=1), state)
            features.append(torch.cat([state, context], dim=1))
        return self.out(torch.tanh(self.readout(torch.stack(features, dim=1))))


class Seq2Seq(nn.Module):
    def __init__(self, vocab, emb=64, hidden=96, attn_dim=96):
        super().__init__()
        self.encoder = Encoder(vocab, emb, hidden)
        self.decoder = Decoder(vocab, emb, hidden, attn_dim)

    def forward(self, src, tgt_in):
        memory, state = self.encoder(src)
        return self.decoder(tgt_in, state, memory, src == PAD)


def train(args):
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    pairs = make_pairs(6000, args.vocab, 12, 24, args.seed)
    model = Seq2Seq(args.vocab)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)

    step, epoch, t0 = 0, 0, time.time()
    while step < args.steps:
        for src, tgt in batches(pairs, args.batch_size, rng):
            logits = model(src, tgt[:, :-1])
            gold = tgt[:, 1:]
            loss = F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            step += 1
            if step % 20 == 0:
                real = gold != PAD
                acc = (logits.argmax(-1) == gold)[real].float().mean().item()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} token acc {acc:.3f} "
                      f"{(time.time() - t0) / step * 1e3:.0f} ms/step", flush=True)
            if step >= args.steps:
                return
        epoch += 1


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=203)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--seed", type=int, default=17)
    train(ap.parse_args())

"""Recurrent translator: bidirectional GRU encoder, additive attention, input-feeding decoder."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, BOS, EOS, FIRST = 0, 1, 2, 3


def bitext(n, vocab, seed):
    rnd = random.Random(seed)
    table = list(range(FIRST, vocab))
    rnd.shuffle(table)
    out = []
    for _ in range(n):
        length = rnd.randint(7, 18)
        src = [min(int(rnd.paretovariate(0.6)) + FIRST - 1, vocab - 1) for _ in range(length)]
        tgt = []
        for a in range(0, length, 3):
            tgt.extend(table[w - FIRST] for w in reversed(src[a:a + 3]))
        out.append((torch.tensor(src), torch.tensor([BOS] + tgt + [EOS])))
    return out


class LengthPools:
    """Shuffles, sorts inside pools of several batches, shuffles the batches again."""

    def __init__(self, pairs, batch, pool=20, seed=0):
        self.pairs, self.batch, self.pool = pairs, batch, pool
        self.rnd = random.Random(seed)

    def __iter__(self):
        while True:
            order = list(range(len(self.pairs)))
            self.rnd.shuffle(order)
            span = self.batch * self.pool
            for a in range(0, len(order), span):
                part = sorted(order[a:a + span], key=lambda i: len(self.pairs[i][0]), reverse=True)
                groups = [part[b:b + self.batch] for b in range(0, len(part), self.batch)]
                self.rnd.shuffle(groups)
                for group in groups:
                    if len(group) == self.batch:
                        yield self.assemble(group)

    def assemble(self, group):
        src = [self.pairs[i][0] for i in group]
        tgt = [self.pairs[i][1] for i in group]
        lengths = torch.tensor([len(s) for s in src])
        return pad_sequence(src, True, PAD), lengths, pad_sequence(tgt, True, PAD)


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hidden, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.embed(src), lengths, batch_first=True)
        states, last = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        return states, torch.tanh(self.bridge(torch.cat([last[0], last[1]], 1)))


class AdditiveAttention(nn.Module):
    def __init__(self, memory_dim, query_dim, dim):
        super().__init__()
        self.key = nn.Linear(memory_dim, dim, bias=False)
        self.query = nn.Linear(query_dim, dim)
        self.energy = nn.Linear(dim, 1, bias=False)

    def forward(self, state, keys, memory, blocked):
        score = self.energy(torch.tanh(keys + self.query(state).unsqueeze(1))).squeeze(-1)
        weight = score.masked_fill(blocked, -1e4).softmax(-1)
        return torch.bmm(weight.unsqueeze(1), memory).squeeze(1)


class Decoder(nn.Module):
    def __init__(self, vocab, emb, hidden, attn):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.attention = AdditiveAttention(2 * hidden, hidden, attn)
        self.cell = nn.GRUCell(emb + hidden, hidden)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.vocab = nn.Linear(hidden, vocab)

    def forward(self, tgt_in, state, memory, blocked):
        keys = self.attention.key(memory)
        words = self.embed(tgt_in)
        feed = torch.zeros_like(state)
        outputs = []
        for word in words.unbind(1):
            state = self.cell(torch.cat([word, feed], 1), state)
            context = self.attention(state, keys, memory, blocked)
            feed = torch.tanh(self.combine(torch.cat([state, context], 1)))
            outputs.append(feed)
        return torch.stack(outputs, 1)


class GRUTranslator(nn.Module):
    def __init__(self, vocab, emb=128, hidden=192, attn=96):
        super().__init__()
        self.encoder = Encoder(vocab, emb, hidden)
        self.decoder = Decoder(vocab, emb, hidden, attn)

    def forward(self, src, lengths, tgt):
        memory, state = self.encoder(src, lengths)
        features = self.decoder(tgt[:, :-1], state, memory, src == PAD)
        gold = tgt[:, 1:]
        real = gold != PAD
        return self.decoder.vocab(features[real]), gold[real]


def train(args):
    torch.manual_seed(args.seed)
    corpus = bitext(4000, args.vocab, args.seed)
    held = LengthPools(corpus[:args.batch], args.batch)
    held_batch = next(iter(held))
    model = GRUTranslator(args.vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    stream = iter(LengthPools(corpus[args.batch:], args.batch, seed=args.seed))
    tokens = loss_sum = 0.0

    for step in range(1, args.steps + 1):
        logits, gold = model(*next(stream))
        loss = F.cross_entropy(logits, gold)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        tokens += len(gold)
        loss_sum += loss.item() * len(gold)
        if step % 10 == 0:
            print(f"{step:>5} nll/token {loss_sum / tokens:.5f} ({int(tokens)} tokens)")
            tokens = loss_sum = 0.0
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                logits, gold = model(*held_batch)
                dev = F.cross_entropy(logits, gold).item()
            model.train()
            plateau.step(dev)
            print(f"{step:>5} dev nll {dev:.5f} lr {optimizer.param_groups[0]['lr']:.1e}")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--vocab", type=int, default=2500)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=8)
    train(p.parse_args())

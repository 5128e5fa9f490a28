"""Subtitle translation with a GRU encoder and an input-feeding attention decoder."""
import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, BOS, EOS = 0, 1, 2


def make_bitext(pairs, vocab, seed):
    rnd = random.Random(seed)
    mapping = list(range(3, vocab))
    rnd.shuffle(mapping)
    out = []
    for _ in range(pairs):
        n = rnd.randint(8, 22)
        src = [3 + int((vocab - 3) * rnd.random() ** 2) for _ in range(n)]
        tgt = [mapping[w - 3] for w in src]
        for i in range(0, n - 1, 3):
            tgt[i], tgt[i + 1] = tgt[i + 1], tgt[i]
        out.append((torch.tensor(src), torch.tensor([BOS] + tgt + [EOS])))
    return out


def length_grouped(pairs, batch, seed):
    rnd = random.Random(seed)
    ordered = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
    groups = [ordered[i : i + batch] for i in range(0, len(ordered) - batch + 1, batch)]
    while True:
        rnd.shuffle(groups)
        for g in groups:
            rows = sorted((pairs[i] for i in g), key=lambda p: -len(p[0]))
            lengths = torch.tensor([len(s) for s, _ in rows])
            yield (pad_sequence([s for s, _ in rows], batch_first=True), lengths,
                   pad_sequence([t for _, t in rows], batch_first=True))


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hidden // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.emb(src), lengths, batch_first=True)
        out, h = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return out, torch.tanh(self.bridge(torch.cat([h[0], h[1]], -1)))


class InputFeedDecoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.cell = nn.GRUCell(emb + hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, memory, pad, h, tgt_in):
        keys = self.key(memory).transpose(1, 2)
        feed = torch.zeros_like(h)
        emb = self.emb(tgt_in)
        outputs = []
        for t in range(tgt_in.shape[1]):
            h = self.cell(torch.cat([emb[:, t], feed], -1), h)
            score = torch.bmm(h.unsqueeze(1), keys).squeeze(1).masked_fill(pad, -1e9)
            ctx = torch.bmm(score.softmax(-1).unsqueeze(1), memory).squeeze(1)
            feed = torch.tanh(self.mix(torch.cat([h, ctx], -1)))
            outputs.append(feed)
        return self.out(torch.stack(outputs, 1))


class RNNTranslator(nn.Module):
    def __init__(self, vocab, emb=96, hidden=192):
        super().__init__()
        self.enc = Encoder(vocab, emb, hidden)
        self.dec = InputFeedDecoder(vocab, emb, hidden)

    def forward(self, src, lengths, tgt):
        memory, h = self.enc(src, lengths)
        logits = self.dec(memory, src == PAD, h, tgt[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD,
                               label_smoothing=0.05)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--vocab", type=int, default=2000)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(80)
    bitext = make_bitext(4000, args.vocab, 80)
    stream = length_grouped(bitext, args.batch, 81)
    model = RNNTranslator(args.vocab)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.997)
    window, tokens = 0.0, 0
    for step in range(1, args.steps + 1):
        src, lengths, tgt = next(stream)
        loss = model(src, lengths, tgt)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        window += loss.item()
        tokens += int(lengths.sum())
        if step % 10 == 0:
            print(f"step {step:4d} xent {window / 10:.5f} source tokens {tokens}")
            window, tokens = 0.0, 0


if __name__ == "__main__":
    main()

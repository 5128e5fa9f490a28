"""Train a small attention seq2seq that renders spoken dates into a target language."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
SRC_VOCAB, TGT_VOCAB = 400, 420


def make_corpus(n, rng):
    lexicon = {w: [3 + (w * 7) % 400, 3 + (w * 13 + 5) % 400] for w in range(3, SRC_VOCAB)}
    pairs = []
    for _ in range(n):
        src = [rng.randrange(3, SRC_VOCAB) for _ in range(rng.randint(10, 18))]
        tgt = [lexicon[w][0] for w in reversed(src)][:13]
        pairs.append((src + [EOS], [BOS] + tgt + [EOS]))
    pairs.sort(key=lambda p: (len(p[0]), len(p[1])))
    return pairs


def bucket_batches(pairs, size):
    out = []
    for k in range(0, len(pairs) - size + 1, size):
        chunk = pairs[k:k + size]
        s_len = max(len(s) for s, _ in chunk)
        t_len = max(len(t) for _, t in chunk)
        src = torch.tensor([s + [PAD] * (s_len - len(s)) for s, _ in chunk])
        tgt = torch.tensor([t + [PAD] * (t_len - len(t)) for _, t in chunk])
        out.append((src, tgt))
    return out


class AdditiveAttention(nn.Module):
    def __init__(self, enc_dim, dec_dim, attn_dim):
        super().__init__()
        self.w_enc = nn.Linear(enc_dim, attn_dim, bias=False)
        self.w_dec = nn.Linear(dec_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, memory, mask, keys=None):
        if keys is None:
            keys = self.w_enc(memory)
        energy = self.v(torch.tanh(self.w_dec(query).unsqueeze(1) + keys)).squeeze(-1)
        weights = energy.masked_fill(mask, -1e9).softmax(-1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Translator(nn.Module):
    def __init__(self, emb=64, hid=96, attn=128, fixed=False):
        super().__init__()
        self.fixed = fixed
        self.src_emb = nn.Embedding(SRC_VOCAB, emb, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(TGT_VOCAB, emb, padding_idx=PAD)
        self.encoder = nn.GRU(emb, hid, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hid, hid)
        self.attention = AdditiveAttention(2 * hid, hid, attn)
        self.cell = nn.GRUCell(emb + 2 * hid, hid)
        self.readout = nn.Linear(3 * hid, emb)
        self.project = nn.Linear(emb, TGT_VOCAB)

    def forward(self, src, tgt_in):
        mask = src.eq(PAD)
        memory, h_n = self.encoder(self.src_emb(src))
        state = torch.tanh(self.bridge(torch.cat([h_n[0], h_n[1]], -1)))
        keys = self.attention.w_enc(memory) if self.fixed else None
        words = self.tgt_emb(tgt_in)
        features = []
        for t in range(tgt_in.size(1)):
            context = self.attention(state, memory, mask, keys)
            state = self.cell(torch.cat([words[:, t], context], -1), state)
            features.append(torch.cat([state, context], -1))
        return self.project(torch.tanh(self.readout(torch.stack(features, 1))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(11)
    rng = random.Random(11)
    batches = bucket_batches(make_corpus(2400, rng), 24)
    model = Translator(fixed=args.fixed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    order = []
    for step in range(args.steps):
        if step == 10:
            start = time.process_time()
        if not order:
            order = list(range(len(batches)))
            rng.shuffle(order)
        src, tgt = batches[order.pop()]
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.5f}", flush=True)
    print(f"step_ms={(time.process_time() - start) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

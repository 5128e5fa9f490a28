"""BiLSTM-CRF entity tagger on procedurally generated sentences."""
import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TAGS = ["O"] + [f"{p}-{t}" for t in ("PER", "ORG", "LOC", "DRUG", "DOSE", "DATE", "GENE", "TEST") for p in ("B", "I")]


def make_sentence(rnd, vocab, length):
    words, tags = [], []
    while len(words) < length:
        if rnd.random() < 0.25:
            kind = rnd.randrange(8)
            span = rnd.randint(1, 3)
            for k in range(span):
                words.append(10 + kind * 200 + rnd.randrange(200))
                tags.append(1 + 2 * kind + (k > 0))
        else:
            words.append(rnd.randrange(1700, vocab))
            tags.append(0)
    return words[:length], tags[:length]


def corpus(n, vocab, seed):
    rnd = random.Random(seed)
    data = [make_sentence(rnd, vocab, rnd.randint(36, 48)) for _ in range(n)]
    return [(torch.tensor(w), torch.tensor(t)) for w, t in data]


class Batcher:
    def __init__(self, data, size, seed):
        self.data, self.size = data, size
        self.rnd = random.Random(seed)

    def __iter__(self):
        while True:
            rows = sorted(self.rnd.sample(self.data, self.size), key=lambda r: -len(r[0]))
            words = nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True)
            tags = nn.utils.rnn.pad_sequence([r[1] for r in rows], batch_first=True)
            lengths = torch.tensor([len(r[0]) for r in rows])
            yield words, tags, lengths


class LinearChain(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.trans = nn.Parameter(0.1 * torch.randn(n, n))
        self.start, self.end = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))

    def nll(self, emit, tags, mask):
        b, t, _ = emit.shape
        unary = emit.gather(2, tags.unsqueeze(2)).squeeze(2)
        pair = self.trans[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        gold = (unary * mask).sum(1) + (pair * mask[:, 1:]).sum(1) + self.start[tags[:, 0]] + self.end[last]
        alpha = self.start + emit[:, 0]
        for i in range(1, t):
            step = torch.logsumexp(alpha.unsqueeze(2) + self.trans, 1) + emit[:, i]
            alpha = torch.where(mask[:, i : i + 1], step, alpha)
        return torch.logsumexp(alpha + self.end, 1) - gold

    @torch.no_grad()
    def decode(self, emit, mask):
        score = self.start + emit[:, 0]
        back = []
        for i in range(1, emit.shape[1]):
            best, arg = (score.unsqueeze(2) + self.trans).max(1)
            keep = mask[:, i : i + 1]
            score = torch.where(keep, best + emit[:, i], score)
            back.append(torch.where(keep, arg, torch.arange(score.shape[1])))
        cur = (score + self.end).argmax(1, keepdim=True)
        path = [cur]
        for arg in reversed(back):
            cur = arg.gather(1, cur)
            path.append(cur)
        return torch.cat(path[::-1], 1)


    @torch.no_grad()
    def marginals(self, emit, mask):
        fwd, bwd = [self.start + emit[:, 0]], [self.end.expand_as(emit[:, 0])]
        for i in range(1, emit.shape[1]):
            step = torch.logsumexp(fwd[-1].unsqueeze(2) + self.trans, 1) + emit[:, i]
            fwd.append(torch.where(mask[:, i : i + 1], step, fwd[-1]))
        for i in range(emit.shape[1] - 1, 0, -1):
            step = torch.logsumexp(self.trans + (emit[:, i] + bwd[-1]).unsqueeze(1), 2)
            bwd.append(torch.where(mask[:, i : i + 1], step, bwd[-1]))
        return (torch.stack(fwd, 1) + torch.stack(bwd[::-1], 1)).softmax(-1)


class Tagger(nn.Module):
    def __init__(self, vocab, dim=64, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.drop = nn.Dropout(0.2)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(2 * hidden, len(TAGS))
        self.crf = LinearChain(len(TAGS))

    def emissions(self, words, lengths):
        packed = pack_padded_sequence(self.drop(self.embed(words)), lengths, batch_first=True)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.emit(self.drop(out))


def spans(tags):
    found, start = set(), None
    for i, t in enumerate(tags + [0]):
        if start is not None and not (t > 0 and t % 2 == 0 and t == tags[start] + 1):
            found.add((start, i, tags[start]))
            start = None
        if t % 2 == 1:
            start = i
    return found


def span_f1(gold, path, lengths):
    hit = n_gold = n_path = 0
    for g, p, n in zip(gold.tolist(), path.tolist(), lengths.tolist()):
        a, b = spans(g[:n]), spans(p[:n])
        hit += len(a & b)
        n_gold += len(a)
        n_path += len(b)
    return 2 * hit / max(1, n_gold + n_path)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = Tagger(4000)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=4e-3, fused=True)
        self.batches = iter(Batcher(corpus(3000, 4000, args.seed), args.batch, args.seed))
        self.stats = {}

    def train_step(self):
        words, tags, lengths = next(self.batches)
        mask = torch.arange(words.shape[1]) < lengths.unsqueeze(1)
        emit = self.model.emissions(words, lengths)
        loss = self.model.crf.nll(emit, tags, mask).mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        path = self.model.crf.decode(emit, mask)
        belief = self.model.crf.marginals(emit, mask).gather(2, path.unsqueeze(2)).squeeze(2)
        self.stats = {"nll": loss.item(),
                      "acc": ((path == tags) & mask).sum().item() / mask.sum().item(),
                      "f1": span_f1(tags, path, lengths),
                      "confidence": belief[mask].mean().item()}

    def fit(self):
        for step in range(1, self.args.steps + 1):
            self.train_step()
            if step % self.args.log_every == 0:
                print(step, " ".join(f"{k}={v:.5f}" for k, v in self.stats.items()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--log-every", type=int, default=20)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).fit()

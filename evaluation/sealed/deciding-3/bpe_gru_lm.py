"""Subword GRU language model for a low-resource language (raw text in, BPE inside the dataset)."""
import argparse
import collections

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

ONSETS = ["b", "d", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "st", "tr", "kl"]
NUCLEI = ["a", "e", "i", "o", "u", "ai", "ei", "oa"]
CODAS = ["", "", "n", "r", "s", "l", "t", "m"]


def synth_lexicon(n, rng):
    words = set()
    while len(words) < n:
        k = int(rng.integers(2, 5))
        words.add("".join(str(rng.choice(ONSETS)) + str(rng.choice(NUCLEI)) + str(rng.choice(CODAS)) for _ in range(k)))
    return sorted(words)


def synth_articles(n_docs, n_words, seed):
    rng = np.random.default_rng(seed)
    lex = synth_lexicon(1800, rng)
    rng.shuffle(lex)
    prob = 1.0 / np.arange(1, len(lex) + 1)
    prob /= prob.sum()
    draw = rng.choice(len(lex), size=(n_docs, n_words), p=prob)
    return [" ".join(lex[j] for j in row) for row in draw]


class BytePairTokenizer:
    def __init__(self, n_merges=220):
        self.n_merges = n_merges
        self.ranks = {}
        self.vocab = {"<pad>": 0, "<unk>": 1, "<s>": 2}

    def fit(self, texts):
        counts = collections.Counter(w for t in texts for w in t.split())
        table = {w: list(w) + ["</w>"] for w in counts}
        pairs = collections.Counter()
        where = collections.defaultdict(set)
        for w, sym in table.items():
            for pair in zip(sym, sym[1:]):
                pairs[pair] += counts[w]
                where[pair].add(w)
        for rank in range(self.n_merges):
            best = max(pairs, key=lambda q: (pairs[q], q))
            self.ranks[best] = rank
            for w in list(where[best]):
                old = table[w]
                for pair in zip(old, old[1:]):
                    pairs[pair] -= counts[w]
                table[w] = self._merge(old, best)
                for pair in zip(table[w], table[w][1:]):
                    pairs[pair] += counts[w]
                    where[pair].add(w)
        for sym in sorted({s for w in table.values() for s in w} | {c for w in counts for c in w}):
            self.vocab.setdefault(sym, len(self.vocab))
        return self

    @staticmethod
    def _merge(symbols, pair):
        out, i = [], 0
        while i < len(symbols):
            if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
                out.append(symbols[i] + symbols[i + 1])
                i += 2
            else:
                out.append(symbols[i])
                i += 1
        return out

    def encode_word(self, word):
        symbols = list(word) + ["</w>"]
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda q: self.ranks.get(q, 1 << 30))
            if pair not in self.ranks:
                break
            symbols = self._merge(symbols, pair)
        return [self.vocab.get(s, 1) for s in symbols]

    def encode(self, text):
        ids = [2]
        for word in text.split():
            ids.extend(self.encode_word(word))
        return ids


class ArticleDataset(Dataset):
    def __init__(self, articles, tokenizer, length):
        self.articles, self.tok, self.length = articles, tokenizer, length

    def __len__(self):
        return len(self.articles)

    def __getitem__(self, i):
        words = self.articles[i].split()
        start = int(torch.randint(0, len(words) - 40, (1,)))
        ids = self.tok.encode(" ".join(words[start:start + 40]))[: self.length + 1]
        return torch.tensor(ids + [0] * (self.length + 1 - len(ids)))


class SubwordLM(nn.Module):
    def __init__(self, vocab, dim=112, hidden=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.down = nn.Linear(hidden, dim)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x):
        h, _ = self.gru(self.emb(x))
        return F.linear(self.down(h), self.emb.weight, self.bias)


def run(args):
    torch.manual_seed(args.seed)
    articles = synth_articles(400, 160, args.seed)
    tok = BytePairTokenizer().fit(articles)
    ds = ArticleDataset(articles, tok, args.length)
    loader = DataLoader(ds, batch_size=args.batch, shuffle=True, drop_last=True)
    model = SubwordLM(len(tok.vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=args.steps + 1)
    done = 0
    while done < args.steps:
        for batch in loader:
            x, y = batch[:, :-1], batch[:, 1:]
            loss = F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=0)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            done += 1
            if done % 10 == 0:
                print(f"{done} loss {loss.item():.4f} ppl {loss.exp().item():.2f}")
            if done >= args.steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--length", type=int, default=120)
    parser.add_argument("--seed", type=int, default=5)
    run(parser.parse_args())

"""Table-filling relation extraction: BiLSTM tokens, one label per ordered word pair."""
import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

LABELS = ["none", "works_for", "located_in", "part_of", "born_in", "founded", "owns", "member_of", "spouse"]


@dataclass
class Sentence:
    words: torch.Tensor
    shapes: torch.Tensor
    relations: list


def make_corpus(n, vocab, seed):
    rng = np.random.default_rng(seed)
    corpus = []
    for _ in range(n):
        length = int(rng.integers(18, 37))
        words = np.minimum(rng.zipf(1.25, length) + 1, vocab - 1)
        shapes = words % 11
        relations = []
        for _ in range(int(rng.integers(1, 5))):
            i, j = rng.choice(length, 2, replace=False)
            relations.append((int(i), int(j), 1 + int(words[i] + words[j]) % (len(LABELS) - 1)))
        corpus.append(Sentence(torch.from_numpy(words), torch.from_numpy(shapes), relations))
    return corpus


def collate(sentences):
    words = pad_sequence([s.words for s in sentences], batch_first=True)
    shapes = pad_sequence([s.shapes for s in sentences], batch_first=True)
    lengths = torch.tensor([len(s.words) for s in sentences])
    size = words.shape[1]
    table = torch.zeros(len(sentences), size, size, dtype=torch.long)
    for b, s in enumerate(sentences):
        for i, j, label in s.relations:
            table[b, i, j] = label
    inside = torch.arange(size) < lengths[:, None]
    return words, shapes, lengths, table, inside[:, :, None] & inside[:, None, :]


class TokenEncoder(nn.Module):
    def __init__(self, vocab, dim, hidden):
        super().__init__()
        self.word = nn.Embedding(vocab, dim, padding_idx=0)
        self.shape = nn.Embedding(11, 16)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(dim + 16, hidden, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, words, shapes):
        x = torch.cat([self.word(words), self.shape(shapes)], dim=-1)
        out, _ = self.lstm(self.drop(x))
        return out


class PairScorer(nn.Module):
    """Scores every (head, tail) cell of the sentence table."""

    def __init__(self, in_dim, role_dim, hidden, n_labels):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(in_dim, role_dim), nn.ReLU())
        self.tail = nn.Sequential(nn.Linear(in_dim, role_dim), nn.ReLU())
        self.hidden = nn.Linear(2 * role_dim, hidden)
        self.out = nn.Linear(hidden, n_labels)

    def forward(self, states):
        h, t = self.head(states), self.tail(states)
        n = states.shape[1]
        rows = h.unsqueeze(2).expand(-1, -1, n, -1)
        cols = t.unsqueeze(1).expand(-1, n, -1, -1)
        cells = torch.cat([rows, cols], dim=-1)
        return self.out(torch.tanh(self.hidden(cells)))


class TableFiller(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.encoder = TokenEncoder(vocab, dim=128, hidden=192)
        self.scorer = PairScorer(384, 96, 96, len(LABELS))

    def forward(self, words, shapes):
        return self.scorer(self.encoder(words, shapes))


def table_loss(logits, table, inside, class_weight):
    return F.cross_entropy(logits[inside], table[inside], weight=class_weight)


def micro_f1(logits, table, inside):
    guess = logits.argmax(-1)
    hit = ((guess == table) & (table > 0) & inside).sum()
    made = ((guess > 0) & inside).sum()
    gold = ((table > 0) & inside).sum()
    return (2 * hit / (made + gold).clamp(min=1)).item()


def batches(corpus, size, rng):
    while True:
        order = rng.permutation(len(corpus))
        for k in range(0, len(order) - size + 1, size):
            yield collate([corpus[i] for i in order[k:k + size]])


def train(args):
    torch.manual_seed(args.seed)
    corpus = make_corpus(2500, args.vocab, args.seed)
    dev = collate(make_corpus(32, args.vocab, args.seed + 1))
    model = TableFiller(args.vocab)
    weight = torch.tensor([0.1] + [1.0] * (len(LABELS) - 1))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=args.steps + 1)
    stream = batches(corpus, args.batch, np.random.default_rng(args.seed + 2))
    for step in range(1, args.steps + 1):
        words, shapes, lengths, table, inside = next(stream)
        loss = table_loss(model(words, shapes), table, inside, weight)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        if step % args.report == 0:
            print(f"[{step}] loss={loss.item():.5f} tokens={int(lengths.sum())}")
        if step % args.eval_every == 0:
            model.eval()
            with torch.inference_mode():
                logits = model(dev[0], dev[1])
            print(f"[{step}] dev micro-F1={micro_f1(logits, dev[3], dev[4]):.4f}")
            model.train()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--vocab", type=int, default=8000)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--report", type=int, default=10)
    p.add_argument("--eval-every", type=int, default=30)
    p.add_argument("--seed", type=int, default=7)
    train(p.parse_args())

"""Graph-based dependency parser with an MLP arc scorer."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ArcScorer(nn.Module):
    def __init__(self, dim, hidden, split):
        super().__init__()
        self.first, self.second = nn.Linear(2 * dim, hidden), nn.Linear(hidden, 1)
        self.dim, self.split = dim, split

    def forward(self, heads, deps):
        if self.split:
            w_head, w_dep = self.first.weight.split(self.dim, 1)
            h = F.linear(heads, w_head, self.first.bias).unsqueeze(1) + F.linear(deps, w_dep).unsqueeze(2)
        else:
            b, t, d = heads.shape
            left = heads.unsqueeze(1).expand(b, t, t, d)
            right = deps.unsqueeze(2).expand(b, t, t, d)
            h = self.first(torch.cat([left, right], -1))
        return self.second(torch.tanh(h)).squeeze(-1)


class Parser(nn.Module):
    def __init__(self, vocab=500, dim=64, split=False):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.head, self.dep = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.scorer = ArcScorer(dim, 48, split)

    def forward(self, words, valid):
        h, _ = self.rnn(self.emb(words))
        scores = self.scorer(F.relu(self.head(h)), F.relu(self.dep(h)))
        return scores.masked_fill(~valid[:, None, :], -1e4)


class Treebank:
    def __init__(self, n=400, max_len=24):
        self.len = torch.randint(max_len - 3, max_len + 1, (n,))
        self.words = torch.randint(1, 500, (n, max_len))
        self.valid = torch.arange(max_len) < self.len[:, None]
        jump = self.words % 3 + 1
        self.heads = (torch.arange(max_len) - jump).clamp(min=0)

    def sample(self, k):
        i = torch.randint(0, len(self.len), (k,))
        top = int(self.len[i].max())
        return self.words[i, :top], self.valid[i, :top], self.heads[i, :top]


def arc_loss(scores, heads, valid):
    return F.cross_entropy(scores[valid], heads[valid])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(191)
    bank, parser = Treebank(), Parser(split=args.fixed)
    opt = torch.optim.Adam(parser.parameters(), lr=2e-3, betas=(0.9, 0.9), fused=True)
    for step in range(args.steps):
        words, valid, heads = bank.sample(12)
        scores = parser(words, valid)
        loss = arc_loss(scores, heads, valid)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
        opt.step()
        if step % 5 == 0:
            uas = (scores.detach().argmax(-1) == heads)[valid].float().mean()
            print(f"step {step} arc {loss.item():.5f} uas {uas.item():.3f}")


if __name__ == "__main__":
    main()

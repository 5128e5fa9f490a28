"""News recommendation: a reader tower over click history, an article tower over title and metadata."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Catalogue:
    def __init__(self, size, vocab, title_len, sections, seed):
        g = np.random.default_rng(seed)
        self.section = torch.from_numpy(g.integers(0, sections, size))
        own = self.section.numpy()[:, None] * 50 + g.integers(0, 50, size=(size, title_len))
        anywhere = g.integers(0, vocab, size=(size, title_len))
        self.titles = torch.from_numpy(np.where(g.random((size, title_len)) < 0.5, own, anywhere))
        self.age = torch.from_numpy(g.exponential(1.0, size).astype(np.float32))

    def __len__(self):
        return len(self.section)

    def rows(self, ids):
        return self.titles[ids], self.section[ids], self.age[ids]


def click_logs(catalogue, readers, history, seed):
    """Each reader follows two sections; last click is the label."""
    g = np.random.default_rng(seed)
    section = catalogue.section.numpy()
    pools = [np.flatnonzero(section == s) for s in range(section.max() + 1)]
    logs = np.empty((readers, history + 1), dtype=np.int64)
    for r in range(readers):
        liked = g.choice(len(pools), 2, replace=False)
        picks = g.integers(0, 2, history + 1)
        for t, w in enumerate(picks):
            pool = pools[liked[w]]
            logs[r, t] = pool[g.integers(len(pool))]
    return torch.from_numpy(logs)


class ArticleTower(nn.Module):
    def __init__(self, vocab, sections, dim):
        super().__init__()
        self.word = nn.Embedding(vocab, 96)
        self.section = nn.Embedding(sections, 32)
        self.conv = nn.Conv1d(96, 128, 3, padding=1)
        self.mix = nn.Sequential(nn.Linear(128 + 32 + 1, 256), nn.ReLU(), nn.Linear(256, dim))

    def forward(self, titles, section, age):
        words = self.conv(self.word(titles).transpose(1, 2))
        text = F.relu(words).amax(-1)
        return self.mix(torch.cat([text, self.section(section), age.log1p()[:, None]], 1))


class ReaderTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, dim)

    def forward(self, clicked):
        states, last = self.gru(clicked)
        return self.out(last[0] + states.mean(1))


class NewsModel(nn.Module):
    def __init__(self, vocab, sections, dim=96):
        super().__init__()
        self.article = ArticleTower(vocab, sections, dim)
        self.reader = ReaderTower(dim)

    def embed_articles(self, catalogue, ids):
        return self.article(*catalogue.rows(ids))

    def embed_readers(self, catalogue, history):
        ids, where = history.unique(return_inverse=True)
        return self.reader(self.embed_articles(catalogue, ids)[where])

    def forward(self, catalogue, history, clicked):
        return self.embed_readers(catalogue, history), self.embed_articles(catalogue, clicked)


def in_batch_softmax(readers, articles, clicked, temperature=0.1):
    logits = F.normalize(readers, dim=-1) @ F.normalize(articles, dim=-1).t() / temperature
    same = clicked[:, None] == clicked[None, :]
    same.fill_diagonal_(False)
    return F.cross_entropy(logits.masked_fill(same, -1e4), torch.arange(len(logits)))


def top_articles(model, catalogue, history, k):
    everything = torch.arange(len(catalogue))
    articles = torch.cat([model.embed_articles(catalogue, part) for part in everything.split(500)])
    readers = model.embed_readers(catalogue, history)
    scores = F.normalize(readers, dim=-1) @ F.normalize(articles, dim=-1).t()
    return scores.scatter(1, history, -2.0).topk(k, dim=1).indices


@torch.no_grad()
def evaluate(model, catalogue, logs, chunk, k=50):
    model.eval()
    hits, gain = 0.0, 0.0
    discount = 1.0 / torch.log2(torch.arange(k) + 2.0)
    for part in logs.split(chunk):
        found = top_articles(model, catalogue, part[:, :-1], k) == part[:, -1:]
        hits += found.any(1).sum().item()
        gain += (found * discount).sum().item()
    model.train()
    return hits / len(logs), gain / len(logs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--history", type=int, default=12)
    ap.add_argument("--articles", type=int, default=2000)
    ap.add_argument("--sections", type=int, default=40)
    ap.add_argument("--eval-every", type=int, default=10)
    ap.add_argument("--eval-readers", type=int, default=256)
    ap.add_argument("--eval-chunk", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(2)
    vocab = 4000
    catalogue = Catalogue(args.articles, vocab, 14, args.sections, seed=2)
    logs = click_logs(catalogue, 5000 + args.eval_readers, args.history, seed=3)
    train, held = logs[args.eval_readers:], logs[:args.eval_readers]
    model = NewsModel(vocab, args.sections)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    best = 0.0

    for step in range(1, args.steps + 1):
        batch = train[torch.randint(len(train), (args.batch,))]
        history, clicked = batch[:, :-1], batch[:, -1]
        loss = in_batch_softmax(*model(catalogue, history, clicked), clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % args.eval_every == 0:
            recall, ndcg = evaluate(model, catalogue, held, args.eval_chunk)
            best = max(best, ndcg)
            print(f"step {step} loss {loss.item():.5f} recall@50 {recall:.4f} ndcg@50 {ndcg:.4f} best {best:.4f}")


if __name__ == "__main__":
    main()

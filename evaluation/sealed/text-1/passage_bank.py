"""Dense passage retriever with a bank of passage vectors from earlier steps."""
import argparse
import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class QueryPassagePairs(torch.utils.data.IterableDataset):
    """Topic-model text: a passage and a short query drawn from the same topic mixture."""

    def __init__(self, vocab, topics, query_len, passage_len, seed):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.topic_words = rng.integers(4, vocab, size=(topics, 60))
        self.vocab, self.query_len, self.passage_len = vocab, query_len, passage_len
        self.seed = seed

    def _text(self, rng, topic, n):
        own = self.topic_words[topic, rng.integers(0, 60, n)]
        noise = rng.integers(4, self.vocab, n)
        return np.where(rng.random(n) < 0.6, own, noise)

    def __iter__(self):
        rng = np.random.default_rng(self.seed + 1)
        while True:
            topic = rng.integers(0, len(self.topic_words))
            yield self._text(rng, topic, self.query_len), self._text(rng, topic, self.passage_len)


class TransformerLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.in_norm, self.out_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.merge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x):
        n, t, d = x.shape
        qkv = self.qkv(self.in_norm(x)).reshape(n, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.merge(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.out_norm(x))))


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim, out_dim, layers, max_len):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(max_len, dim))
        self.layers = nn.Sequential(*[TransformerLayer(dim, 4) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, out_dim)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[:ids.shape[1]]
        return self.project(self.norm(self.layers(x)).mean(1))


def cosine_table(a, b):
    return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t()


class PassageBank(nn.Module):
    """First-in first-out store of unit passage vectors."""

    def __init__(self, size, dim):
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(size, dim), dim=-1))
        self.head = 0

    @torch.no_grad()
    def push(self, passages):
        n = passages.shape[0]
        assert self.vectors.shape[0] % n == 0
        self.vectors[self.head:self.head + n] = F.normalize(passages, dim=-1)
        self.head = (self.head + n) % self.vectors.shape[0]


class Retriever(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.query = TextEncoder(args.vocab, args.dim, args.out_dim, args.layers, args.passage_len)
        self.passage = TextEncoder(args.vocab, args.dim, args.out_dim, args.layers, args.passage_len)
        self.bank = PassageBank(args.bank, args.out_dim)
        self.log_scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, query_ids, passage_ids):
        q, p = self.query(query_ids), self.passage(passage_ids)
        fresh = cosine_table(q, p)
        earlier = cosine_table(q, self.bank.vectors)
        logits = torch.cat([fresh, earlier], dim=1) * self.log_scale.exp().clamp(max=100)
        gold = torch.arange(len(q), device=q.device)
        loss = F.cross_entropy(logits, gold)
        top1 = (fresh.argmax(1) == gold).float().mean()
        return loss, top1, p


def parameter_groups(model, decay):
    plain = [p for n, p in model.named_parameters() if p.ndim < 2]
    matrix = [p for n, p in model.named_parameters() if p.ndim >= 2]
    return [{"params": matrix, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def run(args):
    torch.manual_seed(args.seed)
    pairs = QueryPassagePairs(args.vocab, 400, args.query_len, args.passage_len, args.seed)
    loader = torch.utils.data.DataLoader(pairs, batch_size=args.batch)
    model = Retriever(args)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=25)
    history = []
    for step, (query_ids, passage_ids) in enumerate(itertools.islice(loader, args.steps)):
        loss, top1, passages = model(query_ids, passage_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        model.bank.push(passages)
        history.append((loss.item(), top1.item()))
        if (step + 1) % args.log_every == 0:
            mean_loss, mean_top1 = np.mean(history[-args.log_every:], axis=0)
            print(f"step {step + 1}: nce {mean_loss:.5f} in-batch@1 {mean_top1:.4f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--batch", type=int, default=16)
    cli.add_argument("--vocab", type=int, default=5000)
    cli.add_argument("--dim", type=int, default=128)
    cli.add_argument("--out-dim", type=int, default=256)
    cli.add_argument("--layers", type=int, default=2)
    cli.add_argument("--query-len", type=int, default=12)
    cli.add_argument("--passage-len", type=int, default=40)
    cli.add_argument("--bank", type=int, default=65536)
    cli.add_argument("--lr", type=float, default=5e-4)
    cli.add_argument("--log-every", type=int, default=10)
    cli.add_argument("--seed", type=int, default=17)
    run(cli.parse_args())

"""Momentum-contrast training of a sentence encoder for duplicate-question retrieval.

Positive pairs are two noisy views (token dropout + local shuffles) of one
synthetic "question". Negatives come from a feature queue as in MoCo.
"""
import copy
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 3000
    seq_len: int = 20
    batch: int = 32
    width: int = 128
    out_dim: int = 128
    queue_size: int = 65536
    temperature: float = 0.07
    momentum: float = 0.99
    steps: int = 150
    lr: float = 3e-4
    log_every: int = 25
    seed: int = 5


class QuestionPairs:
    def __init__(self, cfg):
        self.cfg = cfg
        self.g = torch.Generator().manual_seed(cfg.seed)
        topics = 60
        self.topic_words = torch.randint(2, cfg.vocab, (topics, 80), generator=self.g)

    def view(self, tokens):
        drop = torch.rand(tokens.shape, generator=self.g) < 0.15
        out = tokens.masked_fill(drop, 1)
        shift = int(torch.randint(0, 4, (1,), generator=self.g))
        return torch.roll(out, shift, dims=1)

    def sample(self):
        c = self.cfg
        topic = torch.randint(0, len(self.topic_words), (c.batch, 1), generator=self.g)
        pick = torch.randint(0, self.topic_words.shape[1], (c.batch, c.seq_len), generator=self.g)
        tokens = self.topic_words[topic, pick]
        return self.view(tokens), self.view(tokens)


class ConvEncoder(nn.Module):
    """Token embedding -> two gated convolutions -> mean pool -> projection."""

    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.embed = nn.Embedding(cfg.vocab, w)
        self.conv1 = nn.Conv1d(w, 2 * w, 3, padding=1)
        self.conv2 = nn.Conv1d(w, 2 * w, 3, padding=1)
        self.proj = nn.Sequential(nn.Linear(w, w), nn.ReLU(), nn.Linear(w, cfg.out_dim))

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        x = x + F.glu(self.conv1(x), dim=1)
        x = x + F.glu(self.conv2(x), dim=1)
        return F.normalize(self.proj(x.mean(dim=2)), dim=1)


class MomentumContrast(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.query = ConvEncoder(cfg)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(cfg.queue_size, cfg.out_dim), dim=1))

    @torch.no_grad()
    def update_key_encoder(self):
        m = self.cfg.momentum
        torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 1.0 - m)

    @torch.no_grad()
    def enqueue(self, keys):
        """Newest keys first, the oldest ones fall off the end."""
        self.queue = torch.cat([keys, self.queue], dim=0)[: self.cfg.queue_size]

    def forward(self, q_tokens, k_tokens):
        q = self.query(q_tokens)
        with torch.no_grad():
            self.update_key_encoder()
            k = self.key(k_tokens)
        q = q / self.cfg.temperature
        pos = (q * k).sum(1)
        neg = q @ self.queue.t()
        return pos, neg, k


def info_nce(pos, neg):
    """Cross entropy of the positive against the queue, without gluing the logits together."""
    return (torch.logaddexp(pos, torch.logsumexp(neg, dim=1)) - pos).mean()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data = QuestionPairs(cfg)
    model = MomentumContrast(cfg)
    opt = torch.optim.AdamW(model.query.parameters(), lr=cfg.lr, fused=True)

    start = time.time()
    for step in range(1, cfg.steps + 1):
        q_tokens, k_tokens = data.sample()
        pos, neg, keys = model(q_tokens, k_tokens)
        loss = info_nce(pos, neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.enqueue(keys)

        if step % cfg.log_every == 0:
            hit = (pos > neg.amax(1)).float().mean()
            print(f"{step:4d}  loss {loss.item():.4f}  top1 {hit.item():.3f}  {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()

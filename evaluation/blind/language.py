"""Character-ish language model on a synthetic grammar (decoder-only transformer)."""
from dataclasses import dataclass
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    vocab: int = 256
    context: int = 96
    layers: int = 3
    heads: int = 4
    width: int = 192
    batch: int = 6
    steps: int = 150
    warmup: int = 20
    max_lr: float = 1.5e-3
    weight_decay: float = 0.05
    eval_every: int = 50
    eval_batches: int = 2
    seed: int = 1234


def synth_corpus(cfg, length=120_000):
    """Second order Markov text with a sparse transition table."""
    g = torch.Generator().manual_seed(cfg.seed)
    table = torch.randint(0, cfg.vocab, (cfg.vocab, 16, 4), generator=g)
    choice = torch.multinomial(torch.tensor([0.55, 0.25, 0.15, 0.05]), length, replacement=True, generator=g).tolist()
    table = table.tolist()
    text = [0, 1]
    for c in choice:
        text.append(table[text[-1]][text[-2] % 16][c])
    return torch.tensor(text)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.attn = Attention(cfg)
        self.mlp = nn.Sequential(nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(), nn.Linear(4 * cfg.width, cfg.width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Parameter(torch.zeros(cfg.context, cfg.width))
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)
        self.apply(self._init)
        self.head.weight = self.tok.weight

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos[: idx.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Batcher:
    def __init__(self, tokens, cfg, seed):
        self.windows = tokens.unfold(0, cfg.context + 1, 1)     # view, no copy
        self.batch = cfg.batch
        self.g = torch.Generator().manual_seed(seed)

    def next(self):
        pick = torch.randint(0, len(self.windows), (self.batch,), generator=self.g)
        w = self.windows[pick]
        return w[:, :-1].contiguous(), w[:, 1:].contiguous()


def lr_at(step, cfg):
    if step < cfg.warmup:
        return cfg.max_lr * (step + 1) / cfg.warmup
    frac = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return cfg.max_lr * (0.1 + 0.45 * (1 + math.cos(math.pi * frac)))


def make_optimizer(model, cfg):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [dict(params=decay, weight_decay=cfg.weight_decay), dict(params=rest, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=cfg.max_lr, betas=(0.9, 0.98), fused=True)


@torch.no_grad()
def validate(model, batcher, n):
    model.eval()
    losses = [model(*batcher.next()) for _ in range(n)]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    cfg = GPTConfig()
    torch.manual_seed(cfg.seed)
    corpus = synth_corpus(cfg)
    split = int(0.9 * len(corpus))
    train, valid = Batcher(corpus[:split], cfg, 1), Batcher(corpus[split:], cfg, 2)
    model = GPT(cfg)
    opt = make_optimizer(model, cfg)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")

    t0 = time.time()
    for step in range(cfg.steps):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, cfg)
        loss = model(*train.next())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (step + 1) % cfg.eval_every == 0:
            val = validate(model, valid, cfg.eval_batches)
            print(f"step {step + 1}: train {loss.item():.4f} valid {val:.4f} "
                  f"grad-norm {norm.item():.2f} ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    main()

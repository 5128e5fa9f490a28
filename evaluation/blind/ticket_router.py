"""Fine-tune the upper layers of a support-ticket encoder to route tickets to queues."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 4000
    dim: int = 128
    heads: int = 4
    layers: int = 8
    queues: int = 12
    max_tokens: int = 40
    batch: int = 8
    word_dropout: float = 0.1


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.attn_norm, self.ffn_norm = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.up, self.down = nn.Linear(cfg.dim, 4 * cfg.dim), nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.attn_norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class TicketEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.words = nn.Embedding(cfg.vocab, cfg.dim)
        self.positions = nn.Parameter(torch.randn(cfg.max_tokens, cfg.dim) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, ids):
        x = self.words(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(dim=1)


class Router(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = TicketEncoder(cfg)
        self.classifier = nn.Linear(cfg.dim, cfg.queues)

    def freeze_lower(self, tuned_layers):
        self.encoder.requires_grad_(False)
        for layer in self.encoder.layers[-tuned_layers:]:
            layer.requires_grad_(True)
        self.encoder.norm.requires_grad_(True)

    def enable_input_require_grads(self):
        def mark(module, inputs, output):
            output.requires_grad_(True)

        self.encoder.words.register_forward_hook(mark)

    def forward(self, ids):
        return self.classifier(self.encoder(ids))


def make_tickets(cfg, n, seed=3):
    g = torch.Generator().manual_seed(seed)
    queue = torch.randint(cfg.queues, (n,), generator=g)
    topic = 2 + queue[:, None] * 60 + torch.randint(60, (n, cfg.max_tokens), generator=g)
    filler = torch.randint(800, cfg.vocab, (n, cfg.max_tokens), generator=g)
    on_topic = torch.rand(n, cfg.max_tokens, generator=g) < 0.35
    return torch.where(on_topic, topic, filler), queue


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    opts = parser.parse_args()
    cfg = Config()
    torch.manual_seed(11)
    tickets, queues = make_tickets(cfg, 6000)
    model = Router(cfg)
    model.freeze_lower(tuned_layers=2)
    if not opts.fixed:
        model.enable_input_require_grads()
    tuned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=3e-4, fused=True)

    seconds, seen = [], torch.zeros(())
    for step in range(1, opts.steps + 1):
        began = time.perf_counter()
        rows = torch.randint(len(queues), (cfg.batch,))
        ids = tickets[rows]
        ids = ids.masked_fill(torch.rand(ids.shape) < cfg.word_dropout, 1)
        loss = F.cross_entropy(model(ids), queues[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {seen.item() / 50:.4f}")
            seen.zero_()
        seconds.append(time.perf_counter() - began)
    print(f"step_ms={1000 * sum(seconds[10:]) / max(1, len(seconds[10:])):.2f}")


if __name__ == "__main__":
    main()

"""Adapter fine-tuning of a small 'pretrained' transformer classifier."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

D, FF, LAYERS, VOCAB, CLASSES = 128, 384, 3, 600, 5


class LowRankLinear(nn.Module):
    """Wraps a linear layer with a rank-r update."""

    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.down.t()) @ self.up.t() * self.scale


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, D))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, ids):
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x)
        return self.head(x.mean(1))


def inject_adapters(model, freeze):
    if freeze:
        model.requires_grad_(False)
    adapters = []
    for blk in model.blocks:
        for name in ("qkv", "fc1", "fc2"):
            wrapped = LowRankLinear(getattr(blk, name))
            setattr(blk, name, wrapped)
            adapters += [wrapped.down, wrapped.up]
    return adapters


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()
    torch.manual_seed(5)
    model = Classifier()
    params = inject_adapters(model, freeze=args.fixed)
    model.head.requires_grad_(True)
    opt = torch.optim.AdamW(params + list(model.head.parameters()), lr=2e-3)
    ids = torch.randint(0, VOCAB, (256, 48))
    labels = ids[:, :6].sum(1) % CLASSES
    for step in range(args.steps):
        pick = torch.randint(0, 256, (12,))
        loss = F.cross_entropy(model(ids[pick]), labels[pick])
        model.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 4 == 0:
            print(f"step={step} loss={loss.item():.5f}")


if __name__ == "__main__":
    main()

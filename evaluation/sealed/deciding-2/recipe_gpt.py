"""Small causal transformer on recipe-like token streams, with optional accumulation."""
import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def write_tokens(path, n, vocab, seed):
    rng = np.random.default_rng(seed)
    nxt = rng.integers(0, vocab, (vocab, 6))
    lanes = rng.integers(0, vocab, 256)
    out = np.empty((n // 256, 256), dtype=np.uint16)
    for t in range(len(out)):
        out[t] = lanes
        lanes = nxt[lanes, rng.integers(0, 6, 256)]
    out.T.ravel().tofile(path)


class TokenFile:
    def __init__(self, path, block, seed):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.block = block
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, size):
        at = torch.randint(len(self.data) - self.block - 1, (size,), generator=self.gen).tolist()
        rows = np.stack([self.data[i : i + self.block + 1] for i in at]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class DecoderBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.a, self.m = RMSNorm(d), RMSNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2 = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.wqkv(self.a(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, d))
        return x + self.w2(F.gelu(self.w1(self.m(x)), approximate="tanh"))


class RecipeGPT(nn.Module):
    def __init__(self, vocab, d=160, heads=4, depth=4, block=128):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(block, d)
        self.blocks = nn.Sequential(*[DecoderBlock(d, heads) for _ in range(depth)])
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, x, y):
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        logits = self.head(self.norm(self.blocks(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def param_groups(model, decay):
    mats = [p for p in model.parameters() if p.ndim >= 2]
    vecs = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": mats, "weight_decay": decay}, {"params": vecs, "weight_decay": 0.0}]


def cosine(step, total, peak, floor=0.1):
    if step < 10:
        return peak * (step + 1) / 10
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * step / total)))


@torch.no_grad()
def validate(model, tokens, size, rounds):
    model.eval()
    value = sum(model(*tokens.batch(size)).item() for _ in range(rounds)) / rounds
    model.train()
    return value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=1)
    ap.add_argument("--vocab", type=int, default=1024)
    args = ap.parse_args()
    torch.manual_seed(90)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.bin")
        write_tokens(path, 1 << 20, args.vocab, 90)
        train, held = TokenFile(path, 128, 91), TokenFile(path, 128, 92)
        model = RecipeGPT(args.vocab)
        opt = torch.optim.AdamW(param_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.95), fused=True)
        for step in range(args.steps):
            for group in opt.param_groups:
                group["lr"] = cosine(step, args.steps, 2e-3)
            opt.zero_grad(set_to_none=True)
            total = 0.0
            for _ in range(args.accumulate):
                loss = model(*train.batch(args.micro)) / args.accumulate
                loss.backward()
                total += loss.item()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % 10 == 0:
                print(f"{step:5d} train {total:.5f} grad {norm.item():.3f}")
        print(f"held-out {validate(model, held, 4, 4):.5f}")


if __name__ == "__main__":
    main()

# Masked pre-training on longitudinal health records (diagnosis and procedure codes).
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

PAD, MASK, SEP = 0, 1, 2
FIRST_CODE = 3


def simulate_patients(n_patients, n_codes, max_len, seed):
    """Patients follow one of a few chronic pathways; each visit draws codes near it."""
    rng = np.random.default_rng(seed)
    pathways = rng.integers(0, n_codes, size=(40, 60))
    zipf = 1.0 / np.arange(1, 61) ** 0.8
    zipf /= zipf.sum()
    codes = np.full((n_patients, max_len), PAD, dtype=np.int64)
    ages = np.zeros((n_patients, max_len), dtype=np.int64)
    for i in range(n_patients):
        path = pathways[rng.integers(40)]
        length = int(rng.integers(int(0.8 * max_len), max_len + 1))
        row = FIRST_CODE + path[rng.choice(60, size=length, p=zipf)]
        row[rng.random(length) < 0.12] = SEP
        codes[i, :length] = row
        start = rng.integers(20, 70)
        ages[i, :length] = start + np.cumsum(row == SEP) // 2
    return torch.from_numpy(codes), torch.from_numpy(ages.clip(0, 99))


class RecordStream:
    def __init__(self, codes, ages, batch_size, mask_rate, n_tokens, seed):
        self.codes, self.ages = codes, ages
        self.batch_size, self.mask_rate, self.n_tokens = batch_size, mask_rate, n_tokens
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.codes), generator=self.gen)
            for idx in order.split(self.batch_size):
                if len(idx) == self.batch_size:
                    yield self.corrupt(self.codes[idx], self.ages[idx])

    def corrupt(self, codes, ages):
        maskable = codes >= FIRST_CODE
        score = torch.rand(codes.shape, generator=self.gen).masked_fill(~maskable, -1.0)
        count = int(self.mask_rate * codes.shape[1])
        chosen = torch.zeros_like(maskable).scatter_(1, score.topk(count, dim=1).indices, True)
        labels = torch.where(chosen, codes, torch.full_like(codes, -100))
        roll = torch.rand(codes.shape, generator=self.gen)
        noisy = codes.clone()
        noisy[chosen & (roll < 0.8)] = MASK
        swap = chosen & (roll >= 0.9)
        random_codes = torch.randint(FIRST_CODE, self.n_tokens, codes.shape, generator=self.gen)
        noisy[swap] = random_codes[swap]
        return noisy, ages, labels


class Block(nn.Module):
    def __init__(self, dim, heads, ff):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_f = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, ff), nn.Linear(ff, dim)

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_f(x))))


class RecordEncoder(nn.Module):
    def __init__(self, n_tokens, dim, depth, heads, max_len):
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, dim, padding_idx=PAD)
        self.age = nn.Embedding(100, dim)
        self.position = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, heads, 4 * dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        for p in (self.tokens.weight, self.age.weight):
            nn.init.normal_(p, std=0.02)

    def forward(self, codes, ages):
        keep = (codes != PAD)[:, None, None, :]
        x = self.tokens(codes) + self.age(ages) + self.position[: codes.shape[1]]
        for block in self.blocks:
            x = block(x, keep)
        return self.norm(x)


class MaskedCodeModel(nn.Module):
    def __init__(self, n_tokens, dim=128, depth=4, heads=4, max_len=64):
        super().__init__()
        self.encoder = RecordEncoder(n_tokens, dim, depth, heads, max_len)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(n_tokens))

    def forward(self, codes, ages, labels):
        hidden = self.transform(self.encoder(codes, ages))
        logits = F.linear(hidden, self.encoder.tokens.weight, self.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return loss


def schedule_at(step, total, warmup=10):
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--max-len", type=int, default=64)
    ap.add_argument("--codes", type=int, default=6000)
    ap.add_argument("--mask-rate", type=float, default=0.15)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=3)
    cfg = ap.parse_args()

    torch.manual_seed(cfg.seed)
    n_tokens = cfg.codes + FIRST_CODE
    codes, ages = simulate_patients(1500, cfg.codes, cfg.max_len, cfg.seed)
    stream = iter(RecordStream(codes, ages, cfg.batch_size, cfg.mask_rate, n_tokens, cfg.seed))
    model = MaskedCodeModel(n_tokens, max_len=cfg.max_len)
    decay = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01},
                             {"params": other, "weight_decay": 0.0}], lr=cfg.lr, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: schedule_at(s, cfg.steps))

    tick = time.perf_counter()
    for step in range(cfg.steps):
        noisy, age, labels = next(stream)
        loss = model(noisy, age, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0 or step == cfg.steps - 1:
            now = time.perf_counter()
            print(f"step {step:3d}  mlm {loss.item():.4f}  lr {sched.get_last_lr()[0]:.2e}  {now - tick:.1f}s")
            tick = now


if __name__ == "__main__":
    main()

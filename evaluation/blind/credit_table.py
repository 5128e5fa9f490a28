"""Default prediction on a mixed numeric / categorical table with a feature tokeniser and attention."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

NUMERIC, CARDS, DIM, HEADS = 14, [12, 7, 30, 5, 120, 9], 64, 4
BATCH, ROWS, HELD_OUT = 64, 24000, 320


def load_table(seed=8):
    rng = np.random.default_rng(seed)
    num = rng.lognormal(0.0, 0.8, (ROWS, NUMERIC))
    cat = np.stack([rng.integers(0, c, ROWS) for c in CARDS], 1)
    score = np.log(num[:, 0] / num[:, 1]) + 0.4 * np.log(num[:, 2]) * (cat[:, 0] % 3 - 1)
    label = rng.random(ROWS) < 1 / (1 + np.exp(-score + 1.0))
    num = np.log1p(num)
    num = (num - num.mean(0)) / num.std(0)
    cat = cat + np.cumsum([0] + CARDS[:-1])
    return (torch.from_numpy(num.astype(np.float32)), torch.from_numpy(cat),
            torch.from_numpy(label.astype(np.float32)))


class Tokeniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(NUMERIC, DIM) * 0.1)
        self.shift = nn.Parameter(torch.randn(NUMERIC + len(CARDS), DIM) * 0.1)
        self.table = nn.Embedding(sum(CARDS), DIM)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))

    def forward(self, num, cat):
        tok = torch.cat([num[:, :, None] * self.scale, self.table(cat)], 1) + self.shift
        return torch.cat([self.cls.expand(len(num), -1, -1), tok], 1)


class Block(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def split(self, t):
        return t.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)

    def forward(self, x):
        y = self.n1(x)
        if self.last:
            x, query = x[:, :1], y[:, :1]
        else:
            query = y
        k, v = self.kv(y).chunk(2, -1)
        att = F.scaled_dot_product_attention(self.split(self.q(query)), self.split(k), self.split(v))
        x = x + self.proj(att.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.n2(x))))


class CreditNet(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.tok = Tokeniser()
        self.blocks = nn.Sequential(*[Block(i == depth - 1) for i in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.ReLU(), nn.Linear(DIM, 1))

    def forward(self, num, cat):
        return self.head(self.blocks(self.tok(num, cat))[:, 0]).squeeze(-1)


torch.manual_seed(8)
num, cat, label = load_table()
val, (num, cat, label) = [t[:HELD_OUT] for t in (num, cat, label)], [t[HELD_OUT:] for t in (num, cat, label)]
model = CreditNet()
decay = [p for p in model.parameters() if p.ndim == 2]
plain = [p for p in model.parameters() if p.ndim != 2]
groups = [{"params": decay, "weight_decay": 1e-4}, {"params": plain, "weight_decay": 0.0}]
opt = torch.optim.AdamW(groups, lr=5e-4, fused=True)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=50)
live = list(model.parameters())
average = [p.detach().clone() for p in live]
running = torch.zeros(())
order, cursor = torch.randperm(len(label)), 0

for step in range(args.steps):
    if step == 10:
        tic = time.perf_counter()
    if cursor + BATCH > len(order):
        order, cursor = torch.randperm(len(label)), 0
    rows = order[cursor:cursor + BATCH]
    cursor += BATCH
    loss = F.binary_cross_entropy_with_logits(model(num[rows], cat[rows]), label[rows])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(live, 1.0)
    opt.step()
    sched.step()
    with torch.no_grad():
        torch._foreach_lerp_(average, live, 0.01)
        running += loss.detach()
    if (step + 1) % 50 == 0:
        print(f"step {step + 1} loss {running.item() / 50:.5f}")
        running.zero_()
    if (step + 1) % 150 == 0:
        model.eval()
        with torch.inference_mode():
            prob = torch.cat([model(a, b) for a, b in zip(val[0].split(64), val[1].split(64))])
            print(f"  held-out {F.binary_cross_entropy_with_logits(prob, val[2]).item():.4f}")
        model.train()
print(f"step_ms={(time.perf_counter() - tic) * 1e3 / (args.steps - 10):.3f}")

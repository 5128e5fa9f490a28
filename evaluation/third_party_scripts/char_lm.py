"""A character-level language model in the nanoGPT manner; the batch is encoded character by character in every step."""
import math
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size, block_size, n_embd, n_head, n_layer = 16, 64, 64, 4, 1
learning_rate, max_iters, eval_interval = 1e-3, 3000, 1000
torch.manual_seed(1337)

letters = "abcdefghijklmnopqrstuvwxyz ,.\n"
g = torch.Generator().manual_seed(1)
text = "".join(letters[i] for i in torch.randint(0, len(letters), (200_000,), generator=g).tolist())
chars = sorted(set(text))
vocab_size = len(chars)
stoi = {ch: i for i, ch in enumerate(chars)}


def lookup(c):
    return [i for i, ch in enumerate(chars) if ch == c][0]


def get_batch():
    ix = torch.randint(len(text) - block_size - 1, (batch_size,)).tolist()
    x = torch.tensor([[lookup(c) for c in text[i : i + block_size]] for i in ix])
    y = torch.tensor([[lookup(c) for c in text[i + 1 : i + 1 + block_size]] for i in ix])
    return x, y


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.heads = nn.ModuleList(Head() for _ in range(n_layer))
        self.ln = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for head in self.heads:
            x = x + head(self.ln(x))
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


def get_lr(it):
    return learning_rate * 0.5 * (1 + math.cos(math.pi * it / max_iters))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
t0 = time.time()
for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    X, Y = get_batch()
    loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % 100 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {time.time() - t0:.1f}s")

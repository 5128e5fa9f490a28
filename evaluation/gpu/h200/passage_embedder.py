"""Embed a packed text corpus with a wide bidirectional encoder and keep the vectors on the host."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Settings:
    def __init__(self, small):
        self.vocab = 512 if small else 32000
        self.window = 32 if small else 512
        self.width = 64 if small else 4096
        self.heads = 4 if small else 32
        self.layers = 2 if small else 8
        self.batch = 4 if small else 32
        self.passages = 64 if small else 32768


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attn_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_up = nn.Linear(width, 4 * width)
        self.mlp_down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.attn_norm(x)).view(b, n, 3, self.heads, d // self.heads).unbind(2)
        a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.attn_out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp_down(F.gelu(self.mlp_up(self.mlp_norm(x)), approximate="tanh"))


class PassageEncoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.positions = nn.Parameter(torch.randn(s.window, s.width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(s.width, s.heads) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        pooled = self.norm(x).mean(dim=1, dtype=torch.float32)
        return F.normalize(pooled, dim=-1)


def build_corpus(s, pinned):
    """Token windows cut from a long stream: every window is full, so no padding is needed."""
    gen = torch.Generator().manual_seed(11)
    topic = torch.randint(0, s.vocab // 2, (s.passages, 1), generator=gen, dtype=torch.int32)
    words = torch.randint(0, s.vocab // 2, (s.passages, s.window), generator=gen, dtype=torch.int32)
    corpus = words + topic
    return corpus.pin_memory() if pinned else corpus


class VectorStore:
    def __init__(self, passages, width, pinned):
        self.vectors = torch.empty(passages, width, dtype=torch.float16, pin_memory=pinned)

    def put(self, start, vectors):
        rows = self.vectors[start:start + vectors.shape[0]]
        rows.copy_(vectors.to(torch.float16), non_blocking=True)


def spread(vectors):
    """Mean cosine between neighbours of a batch: near 1 would mean collapsed embeddings."""
    return (vectors[:-1] * vectors[1:]).sum(-1).mean()


def sync(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def embed(model, corpus, store, s, steps, device):
    batches = s.passages // s.batch
    warmup, began = 10, None
    for step in range(steps):
        if step == warmup:
            sync(device)
            began = time.perf_counter()
        start = (step % batches) * s.batch
        ids = corpus[start:start + s.batch].to(device, non_blocking=True)
        vectors = model(ids)
        store.put(start, vectors)
        if step % 20 == 19:
            print(f"step {step + 1} loss {spread(vectors).item():.5f}", flush=True)
    sync(device)
    if began is not None:
        print(f"step_ms={(time.perf_counter() - began) * 1000 / (steps - warmup):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true", help="accepted for a common command line; no effect")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(5)
    device = torch.device(args.device)
    s = Settings(args.small)
    with device:
        model = PassageEncoder(s)
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    pinned = device.type == "cuda"
    corpus = build_corpus(s, pinned)
    store = VectorStore(s.passages, s.width, pinned)
    embed(model, corpus, store, s, args.steps, device)
    print(f"mean norm {store.vectors[:s.batch].float().norm(dim=-1).mean().item():.4f}")


if __name__ == "__main__":
    main()

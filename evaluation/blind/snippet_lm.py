"""Train a small completion model on a packed stream of source files."""
import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

EOS, VOCAB, WINDOW = 0, 900, 64


def load_shard(n_files=3000, seed=13):
    rng = random.Random(seed)
    idioms = [[rng.randrange(1, VOCAB) for _ in range(rng.randint(4, 12))] for _ in range(250)]
    shard = []
    for _ in range(n_files):
        ids = []
        for _ in range(rng.randint(20, 45)):
            ids.extend(idioms[min(249, int(rng.expovariate(0.02)))])
        shard.append(ids)
    return shard


class PackedFiles(IterableDataset):
    """Concatenates files with EOS between them and cuts fixed windows."""

    def __init__(self, shard, window, buffer_tokens, in_place):
        self.shard, self.window = shard, window
        self.buffer_tokens, self.in_place = buffer_tokens, in_place

    def files(self):
        rng = random.Random(5)
        while True:
            for i in rng.sample(range(len(self.shard)), len(self.shard)):
                yield self.shard[i]

    def __iter__(self):
        buffer, source = [], self.files()
        while True:
            while len(buffer) < self.buffer_tokens:
                buffer.extend(next(source))
                buffer.append(EOS)
            if self.in_place:
                at = 0
                while len(buffer) - at > self.window:
                    yield torch.tensor(buffer[at:at + self.window + 1])
                    at += self.window
                del buffer[:at]
            else:
                while len(buffer) > self.window:
                    yield torch.tensor(buffer[:self.window + 1])
                    buffer = buffer[self.window:]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_f = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        n, t, w = x.shape
        qkv = self.wqkv(self.norm_a(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(n, t, w))
        gate, up = self.gate_up(self.norm_f(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class SnippetLM(nn.Module):
    def __init__(self, window, width=96, layers=2, heads=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Parameter(torch.randn(window, width) * 0.02)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.final = nn.RMSNorm(width)
        self.out = nn.Linear(width, VOCAB, bias=False)

    def forward(self, ids):
        return self.out(self.final(self.layers(self.embed(ids) + self.place)))


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=300)
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--buffer-tokens", type=int, default=500_000)
    args = cli.parse_args()
    torch.manual_seed(0)

    stream = PackedFiles(load_shard(), WINDOW, args.buffer_tokens, in_place=args.fixed)
    batches = iter(DataLoader(stream, batch_size=8))
    model = SnippetLM(WINDOW)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), fused=True)

    times = []
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        chunk = next(batches)
        logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
        times.append(time.perf_counter() - start)
    print(f"step_ms={1e3 * sum(times[10:]) / max(1, len(times) - 10):.2f}")


if __name__ == "__main__":
    main()

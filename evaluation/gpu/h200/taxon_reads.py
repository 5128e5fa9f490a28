"""Classify short sequencing reads by taxon with a k-mer transformer."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

KMER = 6


class ReadArchive(Dataset):
    """Reads given as (taxon, start) into reference genomes that are kept as one byte array."""

    def __init__(self, taxa, genome_length, reads, read_length, seed):
        rng = np.random.default_rng(seed)
        self.genomes = rng.integers(0, 4, size=(taxa, genome_length), dtype=np.uint8)
        abundance = 1.0 / np.arange(1, taxa + 1)
        self.taxon = rng.choice(taxa, size=reads, p=abundance / abundance.sum()).astype(np.int16)
        self.start = rng.integers(0, genome_length - read_length, size=reads, dtype=np.int32)
        self.read_length = read_length

    def __len__(self):
        return len(self.taxon)

    def __getitem__(self, index):
        taxon, start = self.taxon[index], self.start[index]
        read = self.genomes[taxon, start:start + self.read_length]
        if index & 1:
            read = 3 - read[::-1]
        return read, taxon


class AbundanceSampler(Sampler):
    """Endless batches of read indices, in which rare taxa are drawn more often."""

    def __init__(self, taxon, batch_size, power, seed, table=False):
        counts = np.bincount(taxon)
        weight = (counts.astype(np.float64) ** -power)[taxon]
        self.probability = weight / weight.sum()
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)
        self.cumulative = None
        if table:
            self.cumulative = self.probability.cumsum()
            self.cumulative /= self.cumulative[-1]

    def __iter__(self):
        while True:
            if self.cumulative is not None:
                draws = self.rng.random(self.batch_size)
                picked = self.cumulative.searchsorted(draws, side="right")
            else:
                picked = self.rng.choice(len(self.probability), size=self.batch_size, p=self.probability)
            yield picked.tolist()


def collate(items):
    reads = torch.from_numpy(np.stack([read for read, _ in items]))
    taxa = torch.from_numpy(np.array([taxon for _, taxon in items], dtype=np.int64))
    return reads, taxa


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class ReadClassifier(nn.Module):
    def __init__(self, width, depth, read_length, taxa):
        super().__init__()
        self.embed = nn.Embedding(4 ** KMER, width)
        self.position = nn.Parameter(torch.zeros(read_length - KMER + 1, width))
        self.blocks = nn.Sequential(*[Block(width, width // 64) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, taxa))
        self.register_buffer("place", 4 ** torch.arange(KMER, dtype=torch.int32))

    def forward(self, reads):
        kmers = (reads.unfold(1, KMER, 1) * self.place).sum(-1)
        x = self.blocks(self.embed(kmers) + self.position)
        return self.head(x.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    if args.small:
        taxa, genome, count, length, batch, width, depth, workers = 20, 2000, 50_000, 40, 16, 64, 2, 2
    else:
        taxa, genome, count, length, batch, width, depth, workers = 500, 100_000, 8_000_000, 120, 768, 512, 4, 8

    archive = ReadArchive(taxa, genome, count, length, seed=1)
    sampler = AbundanceSampler(archive.taxon, batch, power=0.5, seed=2, table=args.fixed)
    loader = DataLoader(archive, batch_sampler=sampler, collate_fn=collate, num_workers=workers,
                        pin_memory=cuda, persistent_workers=True, prefetch_factor=4)
    batches = iter(loader)
    model = ReadClassifier(width, depth, length, taxa).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=cuda)

    began = None
    for step in range(args.steps):
        if step == 10:
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
        reads, labels = next(batches)
        reads, labels = reads.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(reads), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 19 or (args.small and step == args.steps - 1):
            print(f"step {step + 1} loss {loss.item():.5f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if began is not None:
        print(f"step_ms={(time.perf_counter() - began) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

"""Species barcode classifier on simulated sequencing reads, two data-parallel processes."""
import argparse
import os
import random
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

BASES = "ACGT"
COMPLEMENT = str.maketrans("ACGT", "TGCA")


class ReadSimulator:
    """Cuts reads from reference barcodes and adds indels, substitutions and strand flips.
    A read is a pure function of its serial number."""

    def __init__(self, species, ref_len, read_len, seed):
        rnd = random.Random(seed)
        self.refs = ["".join(rnd.choices(BASES, k=ref_len)) for _ in range(species)]
        self.read_len, self.seed = read_len, seed

    def read(self, serial):
        rnd = random.Random(self.seed * 1_000_003 + serial)
        label = rnd.randrange(len(self.refs))
        ref = self.refs[label]
        start = rnd.randrange(len(ref) - 2 * self.read_len)
        out, i = [], start
        while len(out) < self.read_len:
            r = rnd.random()
            if r < 0.02:
                out.append(rnd.choice(BASES))
            elif r < 0.04:
                i += 1
            elif r < 0.09:
                out.append(rnd.choice(BASES))
                i += 1
            else:
                out.append(ref[i])
                i += 1
        seq = "".join(out)
        if rnd.random() < 0.5:
            seq = seq.translate(COMPLEMENT)[::-1]
        return seq, label


class KmerCodec:
    def __init__(self, k):
        self.k = k
        self.index = {}
        for n in range(4 ** k):
            word = "".join(BASES[(n >> 2 * j) & 3] for j in range(k))
            self.index[word] = n

    def encode(self, seq):
        k, index = self.k, self.index
        return [index[seq[i : i + k]] for i in range(len(seq) - k + 1)]


class BatchSource:
    def __init__(self, simulator, codec, global_batch, rank, world):
        self.simulator, self.codec = simulator, codec
        self.size, self.rank, self.world = global_batch, rank, world

    def batch(self, step):
        serials = range(step * self.size, (step + 1) * self.size)
        reads = [self.simulator.read(s) for s in serials]
        tokens = torch.tensor([self.codec.encode(seq) for seq, _ in reads])
        labels = torch.tensor([label for _, label in reads])
        return tokens[self.rank :: self.world], labels[self.rank :: self.world]


class BarcodeNet(nn.Module):
    def __init__(self, words, species, width=32):
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.c1 = nn.Conv1d(width, width, 9, stride=2, padding=4)
        self.c2 = nn.Conv1d(width, 2 * width, 9, stride=2, padding=4)
        self.c3 = nn.Conv1d(2 * width, 2 * width, 5, padding=2)
        self.norm = nn.LayerNorm(4 * width)
        self.out = nn.Linear(4 * width, species)

    def forward(self, tokens):
        h = self.emb(tokens).transpose(1, 2)
        h = F.relu(self.c1(h))
        h = F.relu(self.c2(h))
        h = h + F.relu(self.c3(h))
        return self.out(self.norm(torch.cat([h.mean(2), h.amax(2)], 1)))


def run_rank(rank, world, store, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    source = BatchSource(ReadSimulator(args.species, 1500, args.read_len, args.seed), KmerCodec(5),
                         args.batch, rank, world)
    model = BarcodeNet(4 ** 5, args.species)
    ddp = DDP(model, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for step in range(args.steps):
        tokens, labels = source.batch(step)
        logits = ddp(tokens)
        loss = F.cross_entropy(logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 10 == 0:
            pair = torch.stack([loss.detach(), (logits.argmax(1) == labels).float().mean()])
            dist.all_reduce(pair)
            if rank == 0:
                print(f"step {step + 1} loss {pair[0].item() / world:.5f} acc {pair[1].item() / world:.4f}",
                      flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--read-len", type=int, default=200)
    ap.add_argument("--species", type=int, default=40)
    ap.add_argument("--seed", type=int, default=41)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(run_rank, args=(2, os.path.join(tmp, "s"), args), nprocs=2)

# Character-level transliteration, two gloo workers, gradient accumulation over length-sorted micro-batches.
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SRC, TGT = 80, 90
MICRO = 4


class ParallelCorpus:
    def __init__(self, n=4000, seed=0):
        rng = np.random.default_rng(seed)
        lens = np.clip(rng.lognormal(3.1, 0.6, n), 6, 110).astype(int)
        self.src = [torch.from_numpy(rng.integers(3, SRC, k)) for k in lens]
        self.tgt = [torch.cat([torch.tensor([1]), (s * 7 + torch.arange(len(s)) % 3) % (TGT - 3) + 3, torch.tensor([2])])
                    for s in self.src]
        self.length = torch.tensor([len(t) for t in self.tgt])

    def pad(self, idx):
        pad = nn.utils.rnn.pad_sequence
        return (pad([self.src[i] for i in idx], batch_first=True),
                pad([self.tgt[i] for i in idx], batch_first=True))


class GlobalBatches:
    """Every worker draws the same global batch and takes its own part of it."""

    def __init__(self, corpus, size, rank, world, seed):
        self.corpus, self.size, self.rank, self.world = corpus, size, rank, world
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            for idx in torch.randperm(len(self.corpus.length), generator=self.gen).split(self.size):
                if len(idx) < self.size:
                    continue
                tokens = int((self.corpus.length[idx] - 1).sum())
                ranked = idx[self.corpus.length[idx].argsort()]
                parts = ranked.chunk(self.world * MICRO)
                mine = parts[self.rank * MICRO:(self.rank + 1) * MICRO]
                yield [self.corpus.pad(part.tolist()) for part in mine], tokens


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.Embedding(SRC, dim, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 2 * dim, 3, padding=1) for _ in range(3))

    def forward(self, src):
        keep = (src > 0)[:, None].float()
        x = self.emb(src).transpose(1, 2)
        for conv in self.convs:
            x = x + F.glu(conv(x * keep), 1)
        return x.transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.Embedding(TGT, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.q = nn.Linear(dim, dim)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, TGT)

    def forward(self, memory, src_keep, tgt):
        h, _ = self.rnn(self.emb(tgt))
        att = self.q(h) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        att = att.masked_fill(~src_keep[:, None], -1e4).softmax(-1)
        return self.out(torch.tanh(self.mix(torch.cat([h, att @ memory], -1))))


class Transliterator(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.enc, self.dec = Encoder(dim), Decoder(dim)

    def forward(self, src, tgt):
        logits = self.dec(self.enc(src), src > 0, tgt[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), tgt[:, 1:], ignore_index=0, reduction="sum")


def train(rank, world, store, args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    net = DDP(Transliterator(), gradient_as_bucket_view=True)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    feed = iter(GlobalBatches(ParallelCorpus(), args.batch, rank, world, args.seed))
    for step in range(1, args.steps + 1):
        parts, tokens = next(feed)
        opt.zero_grad()
        total = torch.zeros(1)
        for k, (src, tgt) in enumerate(parts):
            net.require_backward_grad_sync = k == len(parts) - 1
            loss = net(src, tgt)
            (loss * world / tokens).backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"update {step} nll/token {total.item() / tokens:.4f} tokens {tokens}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=96, help="sentences per update over all workers")
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(train, args=(2, os.path.join(tmp, "rendezvous"), args), nprocs=2, join=True)


if __name__ == "__main__":
    main()

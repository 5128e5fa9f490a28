"""Part-of-speech tagger, data-parallel over two processes. A global batch is cut into
micro-batches of similar sentence length, which are shared out between the processes."""
import argparse
import os
import random
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

N_TAGS = 17


def treebank(n, vocab, seed):
    rnd = random.Random(seed)
    table = [rnd.randrange(N_TAGS) for _ in range(vocab)]
    sents = []
    for _ in range(n):
        length = max(4, min(110, int(rnd.lognormvariate(3.2, 0.6))))
        words = [rnd.randrange(1, vocab) for _ in range(length)]
        tags = [table[w] if rnd.random() < 0.9 else (table[w] + 1) % N_TAGS for w in words]
        sents.append((torch.tensor(words), torch.tensor(tags)))
    return sents


class GlobalBatches:
    def __init__(self, sents, size, micro, seed):
        self.sents, self.size, self.micro = sents, size, micro
        self.rnd = random.Random(seed)

    def draw(self):
        rows = self.rnd.sample(self.sents, self.size)
        rows.sort(key=lambda r: len(r[0]))
        chunks = [rows[i : i + self.micro] for i in range(0, self.size, self.micro)]
        tokens = sum(len(r[0]) for r in rows)
        return chunks, tokens


def dealt(chunks, rank, world):
    """Snake order, so that the processes get about the same number of tokens."""
    turn = 2 * world
    return [c for i, c in enumerate(chunks) if i % turn in (rank, turn - 1 - rank)]


class ConvAttnTagger(nn.Module):
    def __init__(self, vocab, d=128, heads=4):
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.out = nn.Linear(d, N_TAGS)

    def forward(self, words):
        keep = words > 0
        x = self.emb(words)
        x = x + F.gelu(self.conv(x.transpose(1, 2)).transpose(1, 2))
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return self.out(x + self.ff(self.n2(x)))


def train_worker(rank, world, rendezvous, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    batches = GlobalBatches(treebank(3000, 3000, args.seed), args.batch, args.micro, args.seed)
    model = ConvAttnTagger(3000)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for step in range(1, args.steps + 1):
        chunks, tokens = batches.draw()
        opt.zero_grad()
        total = torch.zeros(2)
        for chunk in dealt(chunks, rank, world):
            words = pad_sequence([r[0] for r in chunk], batch_first=True)
            tags = pad_sequence([r[1] for r in chunk], batch_first=True, padding_value=-100)
            logits = ddp(words)
            loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100, reduction="sum")
            (loss * world / tokens).backward()
            total[0] += loss.detach() / tokens
            total[1] += (logits.argmax(-1) == tags).sum() / tokens
        opt.step()
        if step % 10 == 0:
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step:4d} loss {total[0].item():.5f} acc {total[1].item():.4f}", flush=True)
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--micro", type=int, default=6)
    ap.add_argument("--seed", type=int, default=23)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_worker, args=(2, os.path.join(folder, "store"), args), nprocs=2)


if __name__ == "__main__":
    main()

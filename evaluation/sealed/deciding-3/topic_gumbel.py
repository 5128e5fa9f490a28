"""Document model with a discrete topic bottleneck (straight Gumbel-softmax), compiled step."""
import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, LENGTH = 3000, 48


def documents(n, topics=30, seed=0):
    rng = np.random.default_rng(seed)
    word = rng.dirichlet(np.full(VOCAB, 0.02), topics)
    cdf = word.cumsum(1)
    mix = rng.dirichlet(np.full(topics, 0.1), n)
    z = np.stack([rng.choice(topics, LENGTH, p=m) for m in mix])
    u = rng.random(z.shape)
    ids = np.stack([np.searchsorted(cdf[k], v) for k, v in zip(z.ravel(), u.ravel())]).reshape(z.shape)
    return torch.from_numpy(ids.clip(max=VOCAB - 1))


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.att = nn.Linear(dim, 1)

    def forward(self, ids):
        x = self.emb(ids)
        x = x + F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        w = self.att(x).softmax(1)
        return (w * x).sum(1)


class TopicBottleneck(nn.Module):
    def __init__(self, dim, slots, codes, tau_min=0.4, rate=0.08):
        super().__init__()
        self.slots, self.codes = slots, codes
        self.logits = nn.Linear(dim, slots * codes)
        self.book = nn.Parameter(torch.randn(slots, codes, dim) / dim ** 0.5)
        self.tau_min, self.rate = tau_min, rate
        self.epoch = 0

    def start_epoch(self, epoch):
        self.epoch = epoch

    def forward(self, h):
        logits = self.logits(h).view(-1, self.slots, self.codes)
        tau = max(self.tau_min, math.exp(-self.rate * self.epoch))
        y = F.gumbel_softmax(logits, tau=tau, dim=-1)
        logq = logits.log_softmax(-1)
        kl = (logq.exp() * (logq + math.log(self.codes))).sum((1, 2))
        return torch.einsum("bsk,skd->bd", y, self.book), kl


class DocModel(nn.Module):
    def __init__(self, dim=128, slots=8, codes=32):
        super().__init__()
        self.reader = Reader(dim)
        self.topics = TopicBottleneck(dim, slots, codes)
        self.writer = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, VOCAB))

    def forward(self, ids):
        z, kl = self.topics(self.reader(ids))
        logp = self.writer(z).log_softmax(-1)
        return -logp.gather(1, ids).sum(1).mean(), kl.mean()


class Loop:
    def __init__(self, args):
        self.args = args
        self.ids = documents(args.batch * args.epoch_batches)
        self.gen = torch.Generator().manual_seed(args.seed)
        self.model = DocModel()
        self.fn = torch.compile(self.model, backend="aot_eager")
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
        self.step = 0

    def run_epoch(self, epoch):
        self.model.topics.start_epoch(epoch)
        for idx in torch.randperm(len(self.ids), generator=self.gen).split(self.args.batch):
            nll, kl = self.fn(self.ids[idx])
            loss = nll + 0.1 * kl
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            self.step += 1
            if self.step % 10 == 0:
                print(f"epoch {epoch} step {self.step} nll {nll.item():.3f} kl {kl.item():.3f}")
            if self.step >= self.args.steps:
                return

    def run(self):
        epoch = 0
        while self.step < self.args.steps:
            self.run_epoch(epoch)
            epoch += 1


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--epoch-batches", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    ns = ap.parse_args()
    torch.manual_seed(ns.seed)
    Loop(ns).run()

"""FAQ retrieval: bi-encoder with in-batch negatives and periodically refreshed hard negatives."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


class FaqBase:
    """Answers are token bags around a topic; questions reuse some answer tokens."""

    def __init__(self, n, vocab, q_len, a_len, seed):
        g = torch.Generator().manual_seed(seed)
        topic = torch.randint(200, (n,), generator=g)
        centre = torch.randint(1, vocab, (200,), generator=g)
        spread = (torch.randn(n, a_len, generator=g) * 60).long()
        self.answers = (centre[topic][:, None] + spread).remainder(vocab - 1) + 1
        pick = torch.randint(a_len, (n, q_len), generator=g)
        self.questions = self.answers.gather(1, pick)
        noise = torch.rand(n, q_len, generator=g) < 0.2
        self.questions[noise] = torch.randint(1, vocab, (int(noise.sum()),), generator=g)
        self.n = n


class TextTower(nn.Module):
    def __init__(self, vocab, max_len, d=128, heads=4, layers=2, out=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Parameter(0.02 * torch.randn(1, max_len, d))
        self.layers = nn.ModuleList(TowerLayer(d, heads) for _ in range(layers))
        self.out = nn.Linear(d, out)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[:, : ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.out(x.mean(1)), dim=-1)


class TowerLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.mlp(self.n2(x))


class HardNegatives:
    def __init__(self, base, gen, depth=8):
        self.base, self.gen, self.depth = base, gen, depth
        self.table = torch.randint(base.n, (base.n, depth), generator=gen)

    @torch.inference_mode()
    def refresh(self, tower, rows):
        pool = torch.randint(self.base.n, (192,), generator=self.gen)
        docs = tower(self.base.answers[pool])
        asks = tower(self.base.questions[rows])
        sim = asks @ docs.t()
        sim[rows[:, None] == pool[None]] = -2.0
        self.table[rows] = pool[sim.topk(self.depth, dim=1).indices]

    def choose(self, rows):
        col = torch.randint(self.depth, (len(rows),), generator=self.gen)
        return self.table[rows, col]


def contrastive(tower, base, rows, hard, temperature):
    q = tower(base.questions[rows])
    a = tower(base.answers[torch.cat([rows, hard])])
    logits = q @ a.t() / temperature
    target = torch.arange(len(rows))
    return F.cross_entropy(logits, target), (logits.argmax(1) == target).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--refresh", type=int, default=50)
    ap.add_argument("--vocab", type=int, default=5000)
    args = ap.parse_args()
    torch.manual_seed(140)
    gen = torch.Generator().manual_seed(141)
    base = FaqBase(4000, args.vocab, 10, 28, 142)
    tower = TextTower(args.vocab, 28)
    miner = HardNegatives(base, gen)
    opt = torch.optim.AdamW(tower.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=15)
    for step in range(1, args.steps + 1):
        rows = torch.randperm(base.n, generator=gen)[: args.batch]
        loss, hit = contrastive(tower, base, rows, miner.choose(rows), 0.07)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % args.refresh == 0:
            miner.refresh(tower, torch.randperm(base.n, generator=gen)[:256])
        if step % 10 == 0:
            print(f"step {step:4d} nce {loss.item():.5f} hit@1 {hit.item():.3f}")


if __name__ == "__main__":
    main()

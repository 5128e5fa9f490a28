"""Translation with hard-token weighting: an early-exit draft marks the tokens that still need
work, the full decoder is trained on them with more weight."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS = 0, 1


class ParallelText:
    """Synthetic bitext: target = relabelled, locally reordered source."""

    def __init__(self, vocab, length, batch, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab, self.length, self.batch = vocab, length, batch
        self.lexicon = 2 + torch.randperm(vocab - 2, generator=self.g)

    def draw(self):
        flat = torch.rand(self.batch, self.length, generator=self.g)
        src = 2 + (flat.square() * (self.vocab - 2)).long()
        tgt = self.lexicon[src - 2]
        tgt = tgt.view(self.batch, -1, 2).flip(-1).reshape(self.batch, -1)
        dec_in = torch.cat([torch.full((self.batch, 1), BOS), tgt[:, :-1]], 1)
        return src, dec_in, tgt


class Attend(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x, ctx, causal=False):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(ctx).view(b, ctx.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d, heads, cross):
        super().__init__()
        self.att = Attend(d, heads)
        self.cross = Attend(d, heads) if cross else None
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, memory=None):
        h = self.n1(x)
        x = x + self.att(h, h, causal=memory is not None)
        if self.cross is not None:
            x = x + self.cross(self.n2(x), memory)
        return x + self.ff(self.n3(x))


class Translator(nn.Module):
    def __init__(self, vocab, length, d=160, heads=4):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.02 * torch.randn(1, length, d))
        self.enc = nn.ModuleList([Layer(d, heads, False)])
        self.dec = nn.ModuleList([Layer(d, heads, True) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.vocab_out = nn.Linear(d, vocab)

    def forward(self, src, dec_in):
        m = self.src_emb(src) + self.pos
        for layer in self.enc:
            m = layer(m)
        h = self.tgt_emb(dec_in) + self.pos
        early = None
        for layer in self.dec:
            h = layer(h, m)
            early = h if early is None else early
        draft = self.vocab_out(self.norm(early))
        return self.vocab_out(self.norm(h)), draft


def token_weights(draft, tgt, floor):
    p = draft.detach().log_softmax(-1).gather(-1, tgt.unsqueeze(-1)).squeeze(-1).exp()
    w = floor + (1 - floor) * (1 - p)
    return w / w.mean()


def train(args):
    torch.manual_seed(args.seed)
    text = ParallelText(args.vocab, args.length, args.batch, args.seed)
    model = Translator(args.vocab, args.length)
    net = torch.compile(model, backend=args.backend)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=10)
    for step in range(1, args.steps + 1):
        src, dec_in, tgt = text.draw()
        logits, draft = net(src, dec_in)
        weight = token_weights(draft, tgt, args.floor)
        ce = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), reduction="none").view_as(weight)
        loss = (weight * ce).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        if step % 10 == 0:
            print(f"step {step}: weighted ce {loss.item():.5f} ce {ce.mean().item():.5f} "
                  f"weight max {weight.max().item():.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--vocab", type=int, default=3000)
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--floor", type=float, default=0.3)
    ap.add_argument("--backend", default="aot_eager")
    ap.add_argument("--seed", type=int, default=10)
    train(ap.parse_args())

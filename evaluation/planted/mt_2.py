"""Translation with length-bucketed batches, padding to the batch maximum, dropout and warm-up."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

DIM, HEADS, VOCAB = 80, 4, 120


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, mem, mask=None, causal=False):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = self.kv(mem).view(b, mem.shape[1], 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(b, t, DIM))


class Layer(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.att, self.cross = Attention(), Attention() if cross else None
        self.ff = nn.Sequential(nn.Linear(DIM, 3 * DIM), nn.ReLU(inplace=True), nn.Linear(3 * DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3 if cross else 2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask=None, mem=None, causal=False):
        h = self.norms[0](x)
        if self.cross is None:
            x = x + self.drop(self.att(h, h, mask))
        else:
            x = x + self.drop(self.att(h, h, causal=causal))
            x = x + self.drop(self.cross(self.norms[2](x), mem, mask))
        return x + self.drop(self.ff(self.norms[1](x)))


class Translator(nn.Module):
    def __init__(self, max_len=64):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.randn(max_len, DIM) * 0.02)
        self.enc, self.dec, self.out = Layer(False), Layer(True), nn.Linear(DIM, VOCAB)

    def forward(self, src, valid, tgt):
        mask = valid[:, None, None, :]
        mem = self.enc(self.emb(src) + self.pos[: src.shape[1]], mask)
        return self.out(self.dec(self.emb(tgt) + self.pos[: tgt.shape[1]], mask, mem, causal=True))


class Bitext:
    def __init__(self, n=1200, max_len=60):
        self.lens = torch.randint(16, max_len + 1, (n,))
        self.src = torch.randint(2, VOCAB, (n, max_len))
        self.order = self.lens.argsort()

    def bucket(self, k):
        lo = int(torch.randint(0, len(self.order) - k, ()))
        rows = self.order[lo:lo + k]
        top = int(self.lens[rows].max())
        src = self.src[rows, :top]
        valid = torch.arange(top) < self.lens[rows, None]
        tgt = (src * 7 + 3) % (VOCAB - 2) + 2
        dec_in = torch.cat([torch.ones(k, 1, dtype=torch.long), tgt[:, :-1]], 1)
        return src, valid, dec_in, tgt.masked_fill(~valid, -100)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(389)
    data, model = Bitext(), Translator()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 6, ((s + 1) / 6) ** -0.5))
    for step in range(args.steps):
        src, valid, dec_in, gold = data.bucket(12)
        logits = model(src, valid, dec_in)
        loss = F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=-100, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()

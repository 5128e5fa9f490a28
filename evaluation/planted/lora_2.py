"""Low-rank adapters on a frozen backbone; only adapters and head are trained."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

DIM, VOCAB = 128, 500


class Adapter(nn.Module):
    def __init__(self, frozen, rank=8):
        super().__init__()
        self.frozen = frozen
        self.a = nn.Linear(frozen.in_features, rank, bias=False)
        self.b = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.frozen(x) + self.b(self.a(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Backbone(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))

    def forward(self, ids, valid):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, valid[:, None, None, :])
        return (x * valid.unsqueeze(-1)).sum(1) / valid.sum(1, keepdim=True)


class FineTuner(nn.Module):
    def __init__(self, backbone, n_class):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        for layer in backbone.layers:
            layer.qkv, layer.up = Adapter(layer.qkv), Adapter(layer.up)
        self.head = nn.Linear(DIM, n_class)

    def forward(self, ids, valid):
        return self.head(self.backbone(ids, valid))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(367)
    lens = torch.randint(26, 33, (400,))
    ids = torch.randint(1, VOCAB, (400, 32))
    label = ids[:, :4].sum(1) % 4
    model = FineTuner(Backbone(), 4)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, 6)
    for step in range(args.steps):
        i = torch.randint(0, 400, (12,))
        top = int(lens[i].max())
        valid = torch.arange(top) < lens[i, None]
        loss = F.cross_entropy(model(ids[i, :top], valid), label[i])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        if step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()

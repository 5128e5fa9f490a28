"""Switch-style mixture of experts on a synthetic copy/shift language task."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class SwitchFFN(nn.Module):
    def __init__(self, dim, hidden, n_experts, sparse):
        super().__init__()
        self.router = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(n_experts)
        )
        self.sparse = sparse
        self.balance = None

    def forward(self, x):
        tok = x.reshape(-1, x.shape[-1])
        prob = self.router(tok).softmax(-1)
        top, choice = prob.max(-1)
        share = F.one_hot(choice, prob.shape[1]).float().mean(0)
        self.balance = (share * prob.mean(0)).sum() * prob.shape[1]
        if self.sparse:
            y = self.dispatch(tok, top, choice)
        else:
            gates = torch.zeros_like(prob).scatter(1, choice[:, None], top[:, None])
            y = sum(gates[:, i:i + 1] * expert(tok) for i, expert in enumerate(self.experts))
        return y.view_as(x)

    def dispatch(self, tok, top, choice):
        y = torch.zeros_like(tok)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().squeeze(1)
            y = y.index_add(0, rows, top[rows, None] * expert(tok[rows]))
        return y


class TinyMoELM(nn.Module):
    def __init__(self, vocab=128, dim=64, sparse=False):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3)
        self.norm = nn.LayerNorm(dim)
        self.moe = SwitchFFN(dim, 192, 8, sparse)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        e = self.emb(ids)
        left = F.pad(e.transpose(1, 2), (2, 0))
        h = e + self.conv(left).transpose(1, 2)
        h = h + self.moe(self.norm(h))
        return self.out(h), self.moe.balance


def shifted(batch, length, vocab=128):
    x = torch.randint(0, vocab, (batch, length))
    y = (x + x.roll(1, 1)) % 7 + x // 2
    return x, y.clamp(max=vocab - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(88)
    model = TinyMoELM(sparse=args.fixed)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps):
        x, y = shifted(12, 64)
        logits, balance = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.01 * balance
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.5f} balance {balance.item():.4f}")


if __name__ == "__main__":
    main()

"""Fine-tune a small causal LM to answer the last user turn of a dialogue."""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, HEADS, LAYERS, MAX_LEN = 3000, 96, 4, 2, 96
IGNORE = -100
PAD = 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(att.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.ln2(x))


class ReplyLM(nn.Module):
    def __init__(self, compact):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(MAX_LEN, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.compact = compact
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, tokens, labels):
        x = self.tok(tokens) + self.pos.weight[:tokens.size(1)]
        for layer in self.layers:
            x = layer(x)
        hidden, labels = self.norm(x)[:, :-1], labels[:, 1:]
        if self.compact:
            scored = labels != IGNORE
            hidden, labels = hidden[scored], labels[scored]
        logits = self.lm_head(hidden)
        return F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=IGNORE)


def make_dialogues(count):
    dialogues = []
    for _ in range(count):
        history = int(torch.randint(56, 62, (1,)))
        reply = int(torch.randint(14, 20, (1,)))
        topic = int(torch.randint(1, VOCAB // 30, (1,)))
        turn = topic * 28 + torch.randint(0, 28, (history + reply,))
        dialogues.append((turn, history))
    return sorted(dialogues, key=lambda d: len(d[0]))


def collate(rows):
    longest = max(len(turn) for turn, _ in rows)
    tokens = torch.full((len(rows), longest), PAD)
    labels = torch.full((len(rows), longest), IGNORE)
    for i, (turn, history) in enumerate(rows):
        tokens[i, :len(turn)] = turn
        labels[i, history:len(turn)] = turn[history:]
    return tokens, labels


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    opts = ap.parse_args()

    torch.manual_seed(7)
    dialogues = make_dialogues(640)
    batches = [collate(dialogues[i:i + 8]) for i in range(0, len(dialogues), 8)]
    model = ReplyLM(compact=opts.fixed)
    optim = torch.optim.AdamW(model.parameters(), lr=6e-4)
    order = torch.randperm(len(batches)).tolist()

    clock = time.process_time()
    for step in range(opts.steps):
        if step == 10:
            clock = time.process_time()
        tokens, labels = batches[order[step % len(order)]]
        loss = model(tokens, labels)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        if (step + 1) % 50 == 0:
            print(f"{step + 1:5d} | nll {loss.item():.4f}")
    print(f"step_ms={(time.process_time() - clock) * 1000 / max(1, opts.steps - 10):.2f}")


if __name__ == "__main__":
    main()

import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

# Fine-grained named entity tagger: char-CNN + BiLSTM + linear-chain CRF (BIOES over 24 types).
N_TAGS = 97
N_WORDS = 6000
N_CHARS = 60


def make_corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    sents = []
    for _ in range(n):
        ln = int(torch.randint(25, 46, (1,), generator=g))
        words = torch.randint(1, N_WORDS, (ln,), generator=g)
        chars = (words[:, None] * torch.tensor([3, 7, 11, 13, 17, 19, 23, 29])) % (N_CHARS - 1) + 1
        tags = (words * 31 + torch.roll(words, 1)) % 97 % N_TAGS
        sents.append((words, chars, tags))
    return sents


def batches(sents, size, seed):
    rnd = random.Random(seed)
    while True:
        order = sorted(range(len(sents)), key=lambda i: (len(sents[i][0]) // 4, rnd.random()))
        chunks = [order[i:i + size] for i in range(0, len(order) - size + 1, size)]
        rnd.shuffle(chunks)
        for c in chunks:
            w, ch, t = zip(*(sents[i] for i in c))
            w = pad_sequence(w, batch_first=True)
            yield w, pad_sequence(ch, batch_first=True), pad_sequence(t, batch_first=True), w > 0


class CRF(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(n, n) * 0.05)   # [from, to]
        self.start = nn.Parameter(torch.zeros(n))
        self.end = nn.Parameter(torch.zeros(n))

    def score(self, emit, tags, mask):
        m = mask.float()
        picked = emit.gather(2, tags[..., None]).squeeze(2)
        total = (picked * m).sum(1) + self.start[tags[:, 0]]
        total = total + (self.trans[tags[:, :-1], tags[:, 1:]] * m[:, 1:]).sum(1)
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return total + self.end[last]

    def log_partition(self, emit, mask):
        alpha = self.start + emit[:, 0]
        for t in range(1, emit.shape[1]):
            nxt = torch.logsumexp(alpha[:, :, None] + self.trans, dim=1) + emit[:, t]
            alpha = torch.where(mask[:, t, None], nxt, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def forward(self, emit, tags, mask):
        return (self.log_partition(emit, mask) - self.score(emit, tags, mask)).mean()

    @torch.no_grad()
    def decode(self, emit, mask):
        best = self.start + emit[:, 0]
        back = []
        for t in range(1, emit.shape[1]):
            s, arg = (best[:, :, None] + self.trans).max(1)
            best = torch.where(mask[:, t, None], s + emit[:, t], best)
            back.append(torch.where(mask[:, t, None], arg, torch.arange(N_TAGS)))
        tag = (best + self.end).argmax(1)
        path = [tag]
        for bp in reversed(back):
            tag = bp.gather(1, tag[:, None]).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1], 1)


class Tagger(nn.Module):
    def __init__(self, dim=100, hidden=96):
        super().__init__()
        self.word = nn.Embedding(N_WORDS, dim, padding_idx=0)
        self.char = nn.Embedding(N_CHARS, 24, padding_idx=0)
        self.char_conv = nn.Conv1d(24, 48, 3, padding=1)
        self.rnn = nn.LSTM(dim + 48, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.proj = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.Tanh(), nn.Linear(hidden, N_TAGS))
        self.crf = CRF(N_TAGS)

    def emissions(self, words, chars):
        B, T, C = chars.shape
        c = self.char_conv(self.char(chars).view(B * T, C, -1).transpose(1, 2)).amax(2).view(B, T, -1)
        h, _ = self.rnn(torch.cat([self.word(words), c], -1))
        return self.proj(h)

    def forward(self, words, chars, tags, mask):
        return self.crf(self.emissions(words, chars), tags, mask)


def f_accuracy(model, batch):
    words, chars, tags, mask = batch
    model.eval()
    with torch.no_grad():
        path = model.crf.decode(model.emissions(words, chars), mask)
    model.train()
    return ((path == tags) & mask).sum().item() / mask.sum().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    a = p.parse_args()
    torch.manual_seed(3)
    stream = batches(make_corpus(700, 0), a.batch_size, 1)
    dev = next(batches(make_corpus(24, 1), 24, 2))
    net = Tagger()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr, betas=(0.9, 0.98), fused=True)
    for step in range(1, a.steps + 1):
        loss = net(*next(stream))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            print("step %d nll %.4f" % (step, loss.item()))
        if step % 30 == 0:
            print("dev token accuracy %.4f" % f_accuracy(net, dev))


if __name__ == "__main__":
    main()

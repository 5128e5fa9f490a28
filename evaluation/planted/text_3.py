"""Weighted bag-of-embeddings topic classifier (smooth inverse frequency pooling)."""
import argparse
from collections import Counter

import torch
from torch import nn
import torch.nn.functional as F


class FrequencyWeights:
    def __init__(self, docs, smoothing=1e-3):
        counts = Counter(docs.flatten().tolist())
        total = sum(counts.values())
        self.by_token = {tok: smoothing / (smoothing + c / total) for tok, c in counts.items()}

    def __call__(self, ids):
        flat = [self.by_token.get(tok, 1.0) for tok in ids.flatten().tolist()]
        return torch.tensor(flat).view(ids.shape)


class FrequencyTable:
    def __init__(self, weights, vocab):
        self.table = torch.ones(vocab)
        self.table[list(weights.by_token)] = torch.tensor(list(weights.by_token.values()))

    def __call__(self, ids):
        return self.table[ids]


class TopicNet(nn.Module):
    def __init__(self, vocab, n_topics, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.score = nn.Sequential(nn.Linear(dim, 160), nn.ReLU(), nn.Dropout(0.2), nn.Linear(160, n_topics))

    def forward(self, ids, weight):
        e = self.emb(ids)
        pooled = torch.bmm(weight.unsqueeze(1), e).squeeze(1) / weight.sum(1, keepdim=True)
        return self.score(pooled)


def make_docs(n, length, vocab, n_topics):
    topic = torch.randint(0, n_topics, (n,))
    zipf = (torch.rand(n, length) ** 3 * vocab).long().clamp(max=vocab - 1)
    own = torch.rand(n, length) < 0.15
    return torch.where(own, (topic[:, None] * 37 + zipf % 20) % vocab, zipf), topic


def accuracy(net, weigh, docs, topic):
    net.eval()
    with torch.no_grad():
        acc = (net(docs, weigh(docs)).argmax(1) == topic).float().mean().item()
    net.train()
    return acc


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(91)
    vocab = 2000
    docs, topic = make_docs(3000, 80, vocab, 8)
    weigh = FrequencyWeights(docs[:2800])
    if args.fixed:
        weigh = FrequencyTable(weigh, vocab)
    net = TopicNet(vocab, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    for step in range(args.steps):
        rows = torch.randint(0, 2800, (200,))
        ids = docs[rows]
        loss = F.cross_entropy(net(ids, weigh(ids)), topic[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"step {step} ce {loss.item():.5f}")
    print(f"held out accuracy {accuracy(net, weigh, docs[2800:], topic[2800:]):.3f}")


if __name__ == "__main__":
    main()

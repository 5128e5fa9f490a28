"""Support-ticket routing with a bag-of-n-grams classifier."""
import argparse
import random
import re
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = ("invoice refund login password router modem cable outage contract price cancel upgrade phone screen "
         "battery charger delay parcel address courier account email reset speed signal").split()
BUCKETS = 1024
_url = re.compile(r"https?://\S+")
_num = re.compile(r"\d+")
_tok = re.compile(r"[a-z]+|<num>|<url>")


def encode(text):
    text = _num.sub(" <num> ", _url.sub(" <url> ", text.lower()))
    toks = _tok.findall(text)
    grams = toks + [a + "_" + b for a, b in zip(toks, toks[1:])]
    return torch.tensor([zlib.crc32(g.encode()) % BUCKETS for g in grams])


class Tickets(Dataset):
    def __init__(self, n, seed=8, upfront=False):
        rng = random.Random(seed)
        self.texts, self.labels = [], []
        for _ in range(n):
            topic = rng.randrange(5)
            pool = WORDS[topic * 5: topic * 5 + 5]
            body = [rng.choice(pool if rng.random() < 0.4 else WORDS) for _ in range(rng.randint(30, 70))]
            body.insert(rng.randrange(len(body)), f"Ref {rng.randint(1000, 9999)}: https://help.example/{topic}")
            self.texts.append(" ".join(body))
            self.labels.append(topic)
        self.encoded = [encode(t) for t in self.texts] if upfront else None

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = encode(self.texts[i]) if self.encoded is None else self.encoded[i]
        return ids, self.labels[i]


def bag(batch):
    ids, labels = zip(*batch)
    lens = torch.tensor([len(i) for i in ids])
    return torch.cat(ids), lens.cumsum(0) - lens, torch.tensor(labels)


class Router(nn.Module):
    def __init__(self, dim=192):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean")
        self.net = nn.Sequential(nn.Linear(dim, 320), nn.ReLU(), nn.Dropout(0.1), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 5))

    def forward(self, flat, offsets):
        return self.net(self.bag(flat, offsets))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(227)
    data = Tickets(256, upfront=args.fixed)
    loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=bag)
    net = Router()
    opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    step = 0
    while step < args.steps:
        for flat, offsets, label in loader:
            loss = nn.functional.cross_entropy(net(flat, offsets), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.5f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()

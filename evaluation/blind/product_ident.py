"""Product re-identification: projection network over backbone features, angular-margin classifier."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class CropBank:
    """Pooled backbone features of product crops, several views per article."""

    def __init__(self, articles, views, dim, seed):
        gen = torch.Generator().manual_seed(seed)
        centre = torch.randn(articles, dim, generator=gen)
        noise = torch.randn(articles * views, dim, generator=gen)
        self.features = centre.repeat_interleave(views, 0) + 0.7 * noise
        self.labels = torch.arange(articles).repeat_interleave(views)
        self.gen = gen

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.labels), generator=self.gen)
            for pick in order.split(size):
                if len(pick) == size:
                    yield self.features[pick], self.labels[pick]


class Projector(nn.Module):
    def __init__(self, dim, width, out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, width), nn.BatchNorm1d(width), nn.PReLU(),
            nn.Linear(width, out), nn.BatchNorm1d(out))

    def forward(self, x):
        return F.normalize(self.net(x))


class AngularMargin(nn.Module):
    def __init__(self, dim, classes, scale=32.0, margin=0.3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim) * 0.05)
        self.scale, self.margin = scale, margin

    def cosine(self, emb):
        return F.linear(emb, F.normalize(self.weight))

    def forward(self, emb, label):
        cosine = self.cosine(emb).clamp(-1 + 1e-6, 1 - 1e-6)
        margin = torch.zeros_like(cosine)
        margin.scatter_(1, label[:, None], self.margin)
        theta = torch.acos(cosine)
        return torch.cos(theta + margin) * self.scale


class TargetMargin(AngularMargin):
    def forward(self, emb, label):
        cosine = self.cosine(emb)
        hit = cosine.gather(1, label[:, None]).clamp(-1 + 1e-6, 1 - 1e-6)
        hit = torch.cos(torch.acos(hit) + self.margin)
        return cosine.scatter(1, label[:, None], hit) * self.scale


class Trainer:
    def __init__(self, args):
        torch.manual_seed(11)
        self.bank = CropBank(args.articles, 4, 256, seed=5)
        self.net = Projector(256, 256, args.emb)
        head = TargetMargin if args.fixed else AngularMargin
        self.head = head(args.emb, args.articles)
        self.total = args.steps
        self.opt = torch.optim.SGD(
            [{"params": self.net.parameters(), "weight_decay": 5e-4},
             {"params": self.head.parameters(), "weight_decay": 0.0}],
            lr=0.1, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.rate)

    def rate(self, step):
        warm = min(1.0, (step + 1) / 40)
        return warm * (0.55 + 0.45 * math.cos(math.pi * min(step, 2000) / 2000))

    def step(self, feats, labels):
        logits = self.head(self.net(feats), labels)
        loss = F.cross_entropy(logits, labels)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss.detach()

    def fit(self, batch):
        stream = self.bank.batches(batch)
        window = torch.zeros(())
        for i in range(self.total):
            if i == 10:
                begin = time.perf_counter()
            window += self.step(*next(stream))
            if (i + 1) % 50 == 0:
                print(f"step {i + 1} loss {window.item() / 50:.5f}")
                window.zero_()
        print(f"step_ms={(time.perf_counter() - begin) * 1e3 / (self.total - 10):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--articles", type=int, default=5000)
    parser.add_argument("--emb", type=int, default=64)
    opts = parser.parse_args()
    Trainer(opts).fit(batch=128)

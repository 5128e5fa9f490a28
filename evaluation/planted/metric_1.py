"""Batch-hard triplet training for re-identification style embeddings."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def pairwise_dist(emb):
    sq = emb.square().sum(1)
    d2 = torch.addmm(sq[:, None] + sq[None, :], emb, emb.t(), alpha=-2)
    return d2.clamp_min(1e-6).sqrt()


class BatchHardTriplet(nn.Module):
    def __init__(self, margin=0.3, share=False):
        super().__init__()
        self.margin = margin
        self.share = share

    def hardest_positive(self, emb, labels, dist=None, same=None):
        if dist is None:
            dist = pairwise_dist(emb)
        same = labels[:, None] == labels[None, :] if same is None else same
        return dist.masked_fill(~same, 0.0).amax(1)

    def hardest_negative(self, emb, labels, dist=None, same=None):
        if dist is None:
            dist = pairwise_dist(emb)
        same = labels[:, None] == labels[None, :] if same is None else same
        return dist.masked_fill(same, float("inf")).amin(1)

    def forward(self, emb, labels):
        dist = same = None
        if self.share:
            dist, same = pairwise_dist(emb), labels[:, None] == labels[None, :]
        pos = self.hardest_positive(emb, labels, dist, same)
        neg = self.hardest_negative(emb, labels, dist, same)
        return F.relu(pos - neg + self.margin).mean()


class EmbeddingNet(nn.Module):
    """Head on top of pooled backbone features."""

    def __init__(self, n_in=192, dim=64):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(n_in, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True),
            nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True),
        )
        self.proj = nn.Linear(256, dim)

    def forward(self, feats):
        return self.proj(self.features(feats))


class PKSampler:
    """P identities, K images each."""

    def __init__(self, n_ids, p, k):
        self.n_ids, self.p, self.k = n_ids, p, k
        self.proto = torch.randn(n_ids, 192)

    def draw(self):
        ids = torch.randperm(self.n_ids)[: self.p].repeat_interleave(self.k)
        return self.proto[ids] + 0.7 * torch.randn(len(ids), 192), ids


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args(argv)
    torch.manual_seed(21)
    sampler = PKSampler(300, 144, 4)
    net, criterion = EmbeddingNet(), BatchHardTriplet(share=args.fixed)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    meter = 0.0
    for step in range(1, args.steps + 1):
        feats, ids = sampler.draw()
        loss = criterion(net(feats), ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            meter = loss.item()
            print(f"[{step}] triplet {meter:.5f}")


if __name__ == "__main__":
    main()

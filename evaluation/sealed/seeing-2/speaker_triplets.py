"""Speaker embeddings from x-vector style frames, trained with margin triplets."""
import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class UtteranceStore:
    """Compact in-memory store: int8 filter-bank frames plus a speaker label per utterance."""

    def __init__(self, n_utt, n_speakers, frames, bands, seed):
        rng = np.random.default_rng(seed)
        self.scale = 1 / 24.0
        voice = rng.normal(0, 0.5, (n_speakers, bands)).astype(np.float32)
        spk = rng.integers(0, n_speakers, n_utt)
        # mirrors the manifest: every speaker has at least two utterances
        spk[:2 * n_speakers] = np.tile(np.arange(n_speakers), 2)
        self.speakers = spk.tolist()
        feats = rng.integers(-24, 25, (n_utt, frames, bands), dtype=np.int8)
        feats += (voice[spk] * 24).clip(-100, 100).astype(np.int8)[:, None]
        self.feats = feats

    def __len__(self):
        return len(self.speakers)

    def load(self, i, length):
        f = self.feats[i]
        s = random.randint(0, len(f) - length)
        return torch.from_numpy(f[s:s + length].astype(np.float32)) * self.scale


class TripletSampler(Dataset):
    def __init__(self, store, length, epoch_size):
        self.store, self.length, self.epoch_size = store, length, epoch_size

    def __len__(self):
        return self.epoch_size

    def pick_positive(self, anchor):
        spk = self.store.speakers
        return random.choice([j for j in range(len(spk)) if spk[j] == spk[anchor] and j != anchor])

    def pick_negative(self, anchor):
        spk = self.store.speakers
        return random.choice([j for j in range(len(spk)) if spk[j] != spk[anchor]])

    def __getitem__(self, _):
        a = random.randrange(len(self.store))
        ids = (a, self.pick_positive(a), self.pick_negative(a))
        return torch.stack([self.store.load(i, self.length) for i in ids])


class TDNN(nn.Module):
    def __init__(self, i, o, ctx, dil):
        super().__init__()
        self.conv = nn.Conv1d(i, o, ctx, dilation=dil)
        self.norm = nn.BatchNorm1d(o)

    def forward(self, x):
        return self.norm(F.relu(self.conv(x)))


class StatsPool(nn.Module):
    def forward(self, x):
        mu = x.mean(-1)
        return torch.cat([mu, (x.var(-1, unbiased=False) + 1e-5).sqrt()], 1)


class XVector(nn.Module):
    def __init__(self, bands, width, dim):
        super().__init__()
        self.frame = nn.Sequential(
            TDNN(bands, width, 5, 1), TDNN(width, width, 3, 2), TDNN(width, width, 3, 3),
            TDNN(width, width, 1, 1), TDNN(width, 2 * width, 1, 1))
        self.pool = StatsPool()
        self.emb = nn.Linear(4 * width, dim)

    def forward(self, x):
        return F.normalize(self.emb(self.pool(self.frame(x.transpose(1, 2)))), dim=-1)


class SoftMarginTriplet(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.t = temperature

    def forward(self, e):
        a, p, n = e.unbind(1)
        gap = ((a * p).sum(-1) - (a * n).sum(-1)) / self.t
        return F.softplus(-gap).mean(), (gap > 0).float().mean()


def equal_error_rate(model, pairs, same):
    model.eval()
    with torch.no_grad():
        e = model(pairs.flatten(0, 1)).unflatten(0, pairs.shape[:2])
    model.train()
    score = (e[:, 0] * e[:, 1]).sum(-1).numpy()
    thr = np.sort(score)
    far = np.array([(score[~same] >= t).mean() for t in thr])
    frr = np.array([(score[same] < t).mean() for t in thr])
    k = np.abs(far - frr).argmin()
    return float((far[k] + frr[k]) / 2)


def trial_list(store, sampler, n, length):
    pairs, same = [], []
    for k in range(n):
        a = random.randrange(len(store))
        b = sampler.pick_positive(a) if k % 2 else sampler.pick_negative(a)
        pairs.append(torch.stack([store.load(a, length), store.load(b, length)]))
        same.append(bool(k % 2))
    return torch.stack(pairs), np.array(same)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--utterances", type=int, default=20000)
    ap.add_argument("--speakers", type=int, default=600)
    ap.add_argument("--frames", type=int, default=100)
    ap.add_argument("--crop", type=int, default=80)
    ap.add_argument("--bands", type=int, default=24)
    ap.add_argument("--width", type=int, default=128)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=41)
    a = ap.parse_args()
    random.seed(a.seed)
    torch.manual_seed(a.seed)
    store = UtteranceStore(a.utterances, a.speakers, a.frames, a.bands, a.seed)
    triplets = TripletSampler(store, a.crop, a.steps * a.batch)
    trials = trial_list(store, triplets, 24, a.crop)
    model = XVector(a.bands, a.width, a.dim)
    criterion = SoftMarginTriplet(0.2)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=10)
    for step, batch in enumerate(DataLoader(triplets, a.batch), 1):
        e = model(batch.flatten(0, 1)).unflatten(0, batch.shape[:2])
        loss, ok = criterion(e)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step:4d} loss {loss.item():.4f} ordered {ok.item():.3f}", flush=True)
        if step % 40 == 0:
            print(f"step {step:4d} eer {equal_error_rate(model, *trials):.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Seizure detection from multichannel EEG: band-power features, GRU over time, focal loss."""
import argparse

import numpy as np
import torch
import torch.nn as nn

FS, CH = 128, 8
BANDS = np.geomspace(1.0, 50.0, 17)


def synth_recording(minutes, rng):
    n = minutes * 60 * FS
    white = rng.normal(size=(CH, n)).astype(np.float32)
    x = np.cumsum(white, 1) * 0.02 + white * 0.5
    x -= np.convolve(x.mean(0), np.ones(FS) / FS, "same")
    y = np.zeros(n, bool)
    t = np.arange(n) / FS
    for _ in range(minutes // 2):
        s, d = rng.integers(0, n - 20 * FS), rng.integers(6, 20) * FS
        chan = rng.choice(CH, 4, replace=False)
        x[chan, s:s + d] += 1.5 * np.sign(np.sin(2 * np.pi * rng.uniform(2.5, 4) * t[s:s + d])) * rng.uniform(0.5, 1, (4, 1))
        y[s:s + d] = True
    return x, y


def band_power(x, win, hop):
    """CH x n samples to frames x (CH * bands), log power."""
    frames = np.lib.stride_tricks.sliding_window_view(x, win, axis=1)[:, ::hop]
    spec = np.abs(np.fft.rfft(frames * np.hanning(win), axis=2)) ** 2
    freq = np.fft.rfftfreq(win, 1 / FS)
    edge = np.searchsorted(freq, BANDS)
    power = np.stack([spec[:, :, a:max(b, a + 1)].mean(2) for a, b in zip(edge[:-1], edge[1:])], 2)
    return np.log(power + 1e-6).transpose(1, 0, 2).reshape(power.shape[1], -1).astype(np.float32)


class FeatureStore:
    def __init__(self, n_rec, minutes, seed, win=128, hop=64):
        rng = np.random.default_rng(seed)
        feats, labels = [], []
        for _ in range(n_rec):
            x, y = synth_recording(minutes, rng)
            f = band_power(x, win, hop)
            feats.append(f)
            labels.append(y[win // 2::hop][:len(f)])
        self.x = torch.from_numpy(np.stack(feats))
        self.y = torch.from_numpy(np.stack(labels)).float()
        self.x = (self.x - self.x.mean((0, 1))) / self.x.std((0, 1))
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, batch, length, recs):
        r = torch.randint(recs[0], recs[1], (batch, 1), generator=self.gen)
        t = torch.randint(0, self.x.shape[1] - length, (batch, 1), generator=self.gen) + torch.arange(length)
        return self.x[r, t], self.y[r, t]


class SeizureNet(nn.Module):
    def __init__(self, d_in, hidden=128):
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(d_in, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(self.proj(x))[0]).squeeze(2)


def focal(logits, y, gamma=1.5, alpha=0.7):
    ce = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    w = alpha * y + (1 - alpha) * (1 - y)
    return (w * (1 - torch.exp(-ce)) ** gamma * ce).mean()


def auc(score, y):
    s, order = score.flatten().sort()
    pos = y.flatten()[order].bool()
    rank = torch.arange(1, len(s) + 1, dtype=torch.double)
    n1 = pos.sum().item()
    n0 = len(s) - n1
    return ((rank[pos].sum().item() - n1 * (n1 + 1) / 2) / max(n1 * n0, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--length", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--val-every", type=int, default=60)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    store = FeatureStore(8, 10, args.seed)
    net = SeizureNet(store.x.shape[2])
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, fused=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=3)
    recent = []
    for step in range(1, args.steps + 1):
        x, y = store.sample(args.batch, args.length, (0, 7))
        loss = focal(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        recent.append(loss.item())
        if step % 10 == 0:
            mean = sum(recent) / len(recent)
            plateau.step(mean)
            recent.clear()
            print(f"step {step} focal {mean:.5f} lr {opt.param_groups[0]['lr']:.1e}")
        if step % args.val_every == 0:
            net.eval()
            with torch.no_grad():
                x, y = store.sample(32, args.length, (7, 8))
                print(f"step {step} val AUC {auc(net(x), y):.3f}")
            net.train()


if __name__ == "__main__":
    main()

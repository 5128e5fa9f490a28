"""Sleep staging from 30 s polysomnography epochs (EEG, EOG, EMG and spot vitals)."""
import argparse
import json
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STAGES = ("W", "N1", "N2", "N3", "REM")
FS = 100


def write_night(path, seed, n_epochs=60):
    rng = np.random.default_rng(seed)
    t = np.arange(30 * FS) / FS
    freq = {"W": 10.0, "N1": 6.0, "N2": 13.0, "N3": 1.5, "REM": 5.0}
    signals = np.empty((n_epochs, 3, 30 * FS), np.float32)
    meta = []
    for e in range(n_epochs):
        s = rng.choice(5, p=[0.15, 0.1, 0.4, 0.2, 0.15])
        f = freq[STAGES[s]] * rng.uniform(0.9, 1.1)
        signals[e, 0] = np.sin(2 * np.pi * f * t + rng.uniform(0, 6)) + rng.normal(0, 0.8, t.size)
        signals[e, 1] = (s == 4) * np.sin(2 * np.pi * 0.7 * t) + rng.normal(0, 0.5, t.size)
        signals[e, 2] = rng.normal(0, 0.3 + 0.7 * (s == 0), t.size)
        spo2 = np.round(97 - 2 * rng.random(30) - (s == 4), 1)
        pulse = np.round(62 - 4 * s + rng.normal(0, 3, 30), 1)
        pressure = np.round(10 + rng.normal(0, 1, 30 * 50), 2)
        meta.append({"stage": int(s), "spo2": spo2.tolist(), "pulse": pulse.tolist(), "airflow": pressure.tolist()})
    np.save(path + ".npy", signals)
    with open(path + ".json", "w") as fh:
        json.dump(meta, fh)


class Nights(Dataset):
    def __init__(self, root, n_nights=8):
        os.makedirs(root, exist_ok=True)
        self.signals, self.meta, self.index = [], [], []
        for k in range(n_nights):
            stem = os.path.join(root, f"night{k:02d}")
            if not os.path.exists(stem + ".json"):
                write_night(stem, k)
            x = np.load(stem + ".npy")
            self.signals.append((x - x.mean(2, keepdims=True)) / (x.std(2, keepdims=True) + 1e-6))
            with open(stem + ".json") as fh:
                self.meta.append(json.load(fh))
            self.index += [(k, e) for e in range(len(x))]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        night, epoch = self.index[i]
        m = self.meta[night][epoch]
        return {
            "x": self.signals[night][epoch],
            "spo2": m["spo2"],
            "pulse": m["pulse"],
            "airflow": m["airflow"],
            "stage": m["stage"],
        }


class SignalBranch(nn.Module):
    def __init__(self, c_in, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(c_in, width, 50, stride=10, padding=25), nn.BatchNorm1d(width), nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(width, width * 2, 7, padding=3), nn.BatchNorm1d(width * 2), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 7, padding=3), nn.BatchNorm1d(width * 2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Dropout(0.2))

    def forward(self, x):
        return self.net(x)


class Stager(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.signal = SignalBranch(3, width)
        self.vitals = nn.Sequential(nn.Linear(60, 32), nn.ReLU())
        self.flow = nn.Sequential(nn.Conv1d(1, 16, 9, stride=4), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(width * 16 + 32 + 64, 64), nn.ReLU(), nn.Linear(64, len(STAGES)))

    def forward(self, x, spo2, pulse, airflow):
        v = torch.cat([(spo2 - 95) / 3, (pulse - 58) / 8], 1)
        a = (airflow - 10).unsqueeze(1)
        return self.head(torch.cat([self.signal(x), self.vitals(v), self.flow(a)], 1))


def as_matrix(columns):
    """Batch x time float matrix of a collated series."""
    return torch.stack(list(columns), 1).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "psg_nights_d"))
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Nights(args.data), batch_size=args.batch, shuffle=True, drop_last=True)
    model = Stager()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    ce = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.6, 0.7, 1.0, 1.1]))
    step, hits, seen = 0, 0, 0
    while True:
        for batch in loader:
            logits = model(batch["x"], as_matrix(batch["spo2"]), as_matrix(batch["pulse"]), as_matrix(batch["airflow"]))
            loss = ce(logits, batch["stage"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            hits += int((logits.argmax(1) == batch["stage"]).sum())
            seen += len(logits)
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f} acc {hits / seen:.3f}")
                hits = seen = 0
            if step == args.steps:
                return


if __name__ == "__main__":
    main()

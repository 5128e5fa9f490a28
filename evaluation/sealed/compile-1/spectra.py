"""Regress soil properties from near-infrared spectra kept in one archive per campaign."""
import argparse
import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

TARGETS = ["clay", "carbon", "ph", "nitrogen"]


def write_campaign(path, n, bands, seed):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).uniform(0, bands, 24)
    wl = np.arange(bands)
    shapes = np.exp(-0.5 * ((wl[None] - centres[:, None]) / 30.0) ** 2)
    conc = rng.gamma(2.0, 0.5, size=(n, 24))
    spectra = (conc @ shapes + rng.normal(0, 0.01, (n, bands))).astype(np.float32)
    props = conc[:, : len(TARGETS)] + 0.3 * conc[:, len(TARGETS): 2 * len(TARGETS)]
    meta = rng.integers(0, 5, n)
    np.savez(path, spectra=spectra, props=props.astype(np.float32), instrument=meta)
    return spectra.mean(0), spectra.std(0)


class Campaign(Dataset):
    def __init__(self, path, index, mean, std):
        self.archive = np.load(path)
        self.index = index
        self.mean, self.std = mean, std
        self.jitter = np.random.default_rng(len(index))

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        row = int(self.index.iloc[i]["row"])
        x = (self.archive["spectra"][row] - self.mean) / self.std
        shift = int(self.jitter.integers(-3, 4))
        x = np.roll(x, shift)
        y = self.archive["props"][row]
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), int(self.archive["instrument"][row])


def load_all(root, campaigns, per, bands, seed):
    means, stds, paths = [], [], []
    for c in range(campaigns):
        path = os.path.join(root, f"campaign_{c:02d}.npz")
        m, s = write_campaign(path, per, bands, seed + c)
        means.append(m), stds.append(s), paths.append(path)
    mean = np.mean(means, 0).astype(np.float32)
    std = (np.mean(stds, 0) + 1e-3).astype(np.float32)
    rows = pd.DataFrame({"campaign": np.repeat(np.arange(campaigns), per), "row": np.tile(np.arange(per), campaigns)})
    rows["fold"] = rows["row"] % 10
    keep = rows[rows["fold"] != 0]
    return ConcatDataset([Campaign(p, keep[keep["campaign"] == c], mean, std) for c, p in enumerate(paths)])


class BandMixer(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.token = nn.Linear(groups, groups)

    def forward(self, x):
        h = self.norm(x)
        h = h + self.token(h.transpose(1, 2)).transpose(1, 2)
        a, b = self.mix(h).chunk(2, -1)
        return x + self.out(a * torch.sigmoid(b))


class SpectralNet(nn.Module):
    def __init__(self, bands, patch, width, depth, instruments, n_out):
        super().__init__()
        self.patch = patch
        groups = bands // patch
        self.stem = nn.Linear(patch, width)
        self.inst = nn.Embedding(instruments, width)
        self.layers = nn.ModuleList(BandMixer(width, groups) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.mu = nn.Linear(width, n_out)
        self.log_var = nn.Linear(width, n_out)

    def forward(self, x, inst):
        h = self.stem(x.unflatten(1, (-1, self.patch))) + self.inst(inst).unsqueeze(1)
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h).mean(1)
        return self.mu(h), self.log_var(h).clamp(-6, 4)


def gaussian_nll(mu, log_var, y):
    return 0.5 * (log_var + (y - mu).square() * torch.exp(-log_var)).mean()


def endless(loader):
    while True:
        for batch in loader:
            yield batch


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--bands", type=int, default=1024)
    ap.add_argument("--campaigns", type=int, default=6)
    ap.add_argument("--per-campaign", type=int, default=400)
    ap.add_argument("--width", type=int, default=128)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory(prefix="soil_") as root:
        data = load_all(root, args.campaigns, args.per_campaign, args.bands, args.seed)
        loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True,
                            generator=torch.Generator().manual_seed(args.seed))
        net = SpectralNet(args.bands, 16, args.width, args.depth, 5, len(TARGETS))
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=False)
        opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-2)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr * 3, total_steps=max(args.steps, 100))
        for step, (x, y, inst) in enumerate(endless(loader), 1):
            mu, log_var = compiled(x, inst)
            loss = gaussian_nll(mu, log_var, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            if step % 10 == 0:
                rmse = (mu.detach() - y).square().mean(0).sqrt()
                detail = " ".join(f"{k}={v:.3f}" for k, v in zip(TARGETS, rmse.tolist()))
                print(f"step {step} nll {loss.item():.5f} rmse {detail}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()

"""12-lead ECG multi-label statements with a 1-D residual network; periodic macro-AUC on a held-out fold."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class EcgFold(Dataset):
    def __init__(self, signals, statements):
        self.signals, self.statements = signals, statements

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, i):
        return torch.from_numpy(self.signals[i]), torch.from_numpy(self.statements[i])


def simulate(n, length, n_statements, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(length, dtype=np.float32) / 100.0
    rate = rng.uniform(0.8, 2.0, (n, 1)).astype(np.float32)
    phase = (t[None] * rate + rng.random((n, 1), dtype=np.float32)) % 1.0
    beat = np.exp(-((phase - 0.3) / 0.02) ** 2) + 0.25 * np.exp(-((phase - 0.55) / 0.06) ** 2)
    leads = rng.normal(0, 1, (1, 12, 1)).astype(np.float32)
    sig = beat[:, None] * leads
    y = (rng.random((n, n_statements)) < np.linspace(0.03, 0.3, n_statements)[None]).astype(np.float32)
    pattern = rng.normal(0, 0.5, (n_statements, 12)).astype(np.float32)
    sig = sig + (y @ pattern)[:, :, None] * (phase[:, None] > 0.35) * 0.4
    return (sig + 0.1 * rng.standard_normal(sig.shape, dtype=np.float32)).astype(np.float32), y


class SE(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(ch, ch // 4), nn.ReLU(), nn.Linear(ch // 4, ch), nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean(-1)).unsqueeze(-1)


class ResBlock1d(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(cin, cout, 7, stride, 3, bias=False), nn.BatchNorm1d(cout), nn.ReLU(inplace=True),
            nn.Conv1d(cout, cout, 7, 1, 3, bias=False), nn.BatchNorm1d(cout), SE(cout))
        self.skip = nn.Conv1d(cin, cout, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class EcgNet(nn.Module):
    def __init__(self, n_out, w=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(12, w, 9, 2, 4, bias=False), nn.BatchNorm1d(w), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(ResBlock1d(w, w, 2), ResBlock1d(w, 2 * w, 2), ResBlock1d(2 * w, 3 * w, 2))
        self.head = nn.Linear(6 * w, n_out)

    def forward(self, x):
        h = self.layers(self.stem(x))
        return self.head(torch.cat([h.mean(-1), h.amax(-1)], 1))


def roc_auc(score, target):
    pos = target.sum()
    neg = len(target) - pos
    if pos == 0 or neg == 0:
        return np.nan
    order = np.argsort(score, kind="stable")
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    return (ranks[target > 0.5].sum() - pos * (pos + 1) / 2) / (pos * neg)


class MacroAUC:
    def __init__(self):
        self.scores, self.targets = [], []

    def update(self, logits, targets):
        self.scores.append(logits.numpy())
        self.targets.append(targets.numpy())

    def compute(self):
        s, t = np.concatenate(self.scores), np.concatenate(self.targets)
        per_label = np.array([roc_auc(s[:, k], t[:, k]) for k in range(s.shape[1])])
        return float(np.nanmean(per_label)) if np.isfinite(per_label).any() else float("nan")


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    metric, losses, auc = MacroAUC(), [], float("nan")
    for x, y in loader:
        logits = model(x)
        losses.append(criterion(logits, y).item())
        metric.update(logits.sigmoid(), y)
        auc = metric.compute()
    model.train()
    return {"loss": float(np.mean(losses)), "macro_auc": auc}


def train(args):
    torch.manual_seed(args.seed)
    x, y = simulate(1280, args.length, args.statements, args.seed)
    train_set, val_set = EcgFold(x[:800], y[:800]), EcgFold(x[800:], y[800:])
    gen = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(train_set, args.batch, shuffle=True, drop_last=True, generator=gen)
    val_loader = DataLoader(val_set, 6, generator=torch.Generator())
    model = EcgNet(args.statements)
    criterion = nn.BCEWithLogitsLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps)
    step, best = 0, -1.0
    while step < args.steps:
        for bx, by in train_loader:
            loss = criterion(model(bx), by)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % args.eval_every == 0:
                res = evaluate(model, val_loader, criterion)
                best = max(best, res["macro_auc"])
                print(f"step {step} " + " ".join(f"{k}={v:.4f}" for k, v in res.items()) + f" best={best:.4f}", flush=True)
            if step >= args.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--length", type=int, default=500)
    ap.add_argument("--statements", type=int, default=71)
    ap.add_argument("--eval-every", type=int, default=10)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=31)
    train(ap.parse_args())

"""Deep Cox model for gene-expression survival data.

Synthetic cohort with a known non-linear risk, right censoring, and a small
autoencoder branch used as a regulariser.
"""
from dataclasses import dataclass

import time
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    patients: int = 8000
    genes: int = 400
    hidden: int = 384
    batch: int = 1536
    steps: int = 150
    lr: float = 1e-3
    recon_weight: float = 0.1
    eval_every: int = 50
    seed: int = 11


def simulate_cohort(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    latent = torch.randn(cfg.patients, 12, generator=g)
    x = latent @ torch.randn(12, cfg.genes, generator=g) / 3.5
    x = x + 0.3 * torch.randn(cfg.patients, cfg.genes, generator=g)
    risk = 0.8 * latent[:, 0] + latent[:, 1] * latent[:, 2] * 0.5 - 0.4 * latent[:, 3].abs()
    u = torch.rand(cfg.patients, generator=g, dtype=torch.float64).clamp_min(1e-12)
    event_time = (-u.log() * torch.exp(-risk.double())).sqrt()
    censor_time = 0.3 + 2.5 * torch.rand(cfg.patients, generator=g, dtype=torch.float64)
    time_ = torch.minimum(event_time, censor_time).float()
    event = event_time <= censor_time
    return x, time_, event


class CoxNet(nn.Module):
    def __init__(self, genes, hidden):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(genes, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, hidden // 2), nn.GELU(),
        )
        self.risk = nn.Sequential(nn.Linear(hidden // 2, 64), nn.Tanh(), nn.Linear(64, 1, bias=False))
        self.decoder = nn.Linear(hidden // 2, genes)

    def forward(self, x):
        z = self.encoder(x)
        return self.risk(z).squeeze(-1), self.decoder(z)


class CoxLoss(nn.Module):
    """Negative log partial likelihood (Breslow)."""

    def forward(self, log_risk, time_, event):
        at_risk = time_.unsqueeze(0) >= time_.unsqueeze(1)      # [i, j]: j still under observation at t_i
        scores = log_risk.unsqueeze(0).masked_fill(~at_risk, float("-inf"))
        log_denominator = torch.logsumexp(scores, dim=1)
        ll = (log_risk - log_denominator)[event]
        return -ll.mean()


@torch.no_grad()
def concordance(log_risk, time_, event):
    """Harrell's C on a held-out subset."""
    comparable = (time_[:, None] < time_[None, :]) & event[:, None]
    diff = log_risk[:, None] - log_risk[None, :]
    score = (diff > 0).float() + 0.5 * (diff == 0).float()
    return (score[comparable].sum() / comparable.sum()).item()


def batches(n, size, steps, seed):
    g = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        perm = torch.randperm(n, generator=g)
        for chunk in perm.split(size):
            if chunk.numel() < size:
                break
            yield chunk
            done += 1
            if done == steps:
                return


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    x, time_, event = simulate_cohort(cfg)
    n_train = cfg.patients - 800
    x_val, t_val, e_val = x[n_train:], time_[n_train:], event[n_train:]
    print(f"cohort {cfg.patients}, censored {1 - event.float().mean().item():.2f}")

    model = CoxNet(cfg.genes, cfg.hidden)
    cox = CoxLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-3, fused=True)
    start = time.time()
    for step, idx in enumerate(batches(n_train, cfg.batch, cfg.steps, cfg.seed), 1):
        xb = x[idx]
        log_risk, recon = model(xb)
        nll = cox(log_risk, time_[idx], event[idx])
        loss = nll + cfg.recon_weight * F.mse_loss(recon, xb)
        opt.zero_grad()
        loss.backward()
        opt.step()

        if step % cfg.eval_every == 0:
            model.eval()
            with torch.no_grad():
                val_risk, _ = model(x_val)
            model.train()
            c = concordance(val_risk, t_val, e_val)
            print(f"step {step}: nll {nll.item():.4f} total {loss.item():.4f} c-index {c:.3f} "
                  f"({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()

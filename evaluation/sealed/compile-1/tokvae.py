import argparse
import math

import numpy as np
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.accumulated_recompile_limit = 512


def synth_motion(n, frames, joints, seed):
    """Smooth joint-angle clips, the layout of a mocap export: clip x frame x joint."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, frames)[None, :, None]
    clips = np.zeros((n, frames, joints), dtype=np.float32)
    for k in range(1, 5):
        amp = rng.normal(size=(n, 1, joints)) / k
        phase = rng.uniform(0, 2 * np.pi, size=(n, 1, joints))
        clips += (amp * np.sin(2 * np.pi * k * t + phase)).astype(np.float32)
    return clips + 0.05 * rng.standard_normal(clips.shape).astype(np.float32)


class ResidualMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.time = ResidualMLP(tokens, 2 * tokens)
        self.chan = ResidualMLP(dim, 3 * dim)

    def forward(self, x):
        x = self.time(x.transpose(1, 2)).transpose(1, 2)
        return self.chan(x)


class SoftCodebook(nn.Module):
    def __init__(self, n_codes, dim, tau_start, tau_floor, tau_rate):
        super().__init__()
        self.tau_start, self.tau_floor, self.tau_rate = tau_start, tau_floor, tau_rate
        self.updates = 0
        self.to_logits = nn.Linear(dim, n_codes)
        self.codes = nn.Parameter(torch.randn(n_codes, dim) / math.sqrt(dim))

    @property
    def tau(self):
        return max(self.tau_floor, self.tau_start * math.exp(-self.tau_rate * self.updates))

    def forward(self, h, gumbel):
        logits = self.to_logits(h)
        weights = F.softmax((logits + gumbel) / self.tau, dim=-1)
        log_q = F.log_softmax(logits, dim=-1)
        kl = (log_q.exp() * (log_q + math.log(log_q.shape[-1]))).sum(-1).mean()
        usage = weights.detach().mean((0, 1))
        perplexity = torch.exp(-(usage * (usage + 1e-9).log()).sum())
        return weights @ self.codes, kl, perplexity


class MotionTokenizer(nn.Module):
    def __init__(self, frames, joints, dim, n_codes, depth, schedule, patch=4):
        super().__init__()
        self.patch = patch
        tokens = frames // patch
        self.embed = nn.Linear(patch * joints, dim)
        self.encoder = nn.ModuleList(MixerLayer(tokens, dim) for _ in range(depth))
        self.book = SoftCodebook(n_codes, dim, *schedule)
        self.decoder = nn.ModuleList(MixerLayer(tokens, dim) for _ in range(depth))
        self.unembed = nn.Linear(dim, patch * joints)

    def forward(self, clip, gumbel):
        b, f, j = clip.shape
        h = self.embed(clip.reshape(b, f // self.patch, self.patch * j))
        for layer in self.encoder:
            h = layer(h)
        h, kl, ppl = self.book(h, gumbel)
        for layer in self.decoder:
            h = layer(h)
        rec = self.unembed(h).view(b, f, j)
        return F.smooth_l1_loss(rec, clip), kl, ppl


def run(cfg):
    torch.manual_seed(cfg.seed)
    clips = torch.from_numpy(synth_motion(2400, cfg.frames, cfg.joints, cfg.seed))
    train_set, held = TensorDataset(clips[:-128]), clips[-128:]
    loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(cfg.seed))
    model = MotionTokenizer(cfg.frames, cfg.joints, cfg.dim, cfg.codes, cfg.depth,
                            (cfg.tau_start, cfg.tau_floor, cfg.tau_rate))
    forward = torch.compile(model, backend="aot_eager", fullgraph=True)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    noise_gen = torch.Generator().manual_seed(cfg.seed + 17)
    tokens = cfg.frames // model.patch

    def gumbel_noise(b):
        u = torch.rand(b, tokens, cfg.codes, generator=noise_gen).clamp_(1e-6, 1 - 1e-6)
        return -torch.log(-torch.log(u))

    def kl_weight(step):
        return cfg.beta * min(1.0, step / 50)

    step = 0
    while step < cfg.steps:
        for (clip,) in loader:
            if step % cfg.anneal_every == 0:
                model.book.updates = step
            rec, kl, ppl = forward(clip, gumbel_noise(clip.shape[0]))
            loss = rec + kl_weight(step) * kl
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"{step:5d} | rec {rec.item():.5f} | kl {kl.item():.4f} | "
                      f"ppl {ppl.item():.1f} | tau {float(model.book.tau):.3f}", flush=True)
            if step >= cfg.steps:
                break
    with torch.no_grad():
        rec, kl, _ = model(held, gumbel_noise(len(held)))
        print(f"held-out rec {rec.item():.5f} kl {kl.item():.4f}")


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--frames", type=int, default=128)
    ap.add_argument("--joints", type=int, default=22)
    ap.add_argument("--dim", type=int, default=192)
    ap.add_argument("--codes", type=int, default=512)
    ap.add_argument("--depth", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--beta", type=float, default=2e-4)
    ap.add_argument("--tau-start", type=float, default=2.0)
    ap.add_argument("--tau-floor", type=float, default=0.3)
    ap.add_argument("--tau-rate", type=float, default=0.01)
    ap.add_argument("--anneal-every", type=int, default=10)
    ap.add_argument("--seed", type=int, default=0)
    return ap.parse_args()


if __name__ == "__main__":
    run(parse())

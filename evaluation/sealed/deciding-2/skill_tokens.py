"""Discrete skill tokens for manipulation: VQ autoencoder over action chunks, plus a prior."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


def record_demos(n, chunk, dof, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, chunk)
    kind = torch.randint(12, (n,), generator=g)
    freq = 0.5 + torch.rand(12, dof, generator=g) * 3
    phase = torch.rand(12, dof, generator=g) * 6.28
    amp = torch.rand(n, 1, dof, generator=g) + 0.5
    wave = torch.sin(6.28 * freq[kind][:, None] * t[None, :, None] + phase[kind][:, None])
    return amp * wave + 0.05 * torch.randn(n, chunk, dof, generator=g)


class ChunkEncoder(nn.Module):
    def __init__(self, dof, dim, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(dof, width, 5, padding=2), nn.GELU(),
                                 nn.Conv1d(width, width, 4, stride=2, padding=1), nn.GELU(),
                                 nn.Conv1d(width, dim, 3, padding=1))

    def forward(self, actions):
        return self.net(actions.transpose(1, 2)).transpose(1, 2)


class ChunkDecoder(nn.Module):
    def __init__(self, dof, dim, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(dim, width, 3, padding=1), nn.GELU(),
                                 nn.ConvTranspose1d(width, width, 4, stride=2, padding=1), nn.GELU(),
                                 nn.Conv1d(width, dof, 5, padding=2))

    def forward(self, z):
        return self.net(z.transpose(1, 2)).transpose(1, 2)


class Codebook(nn.Module):
    def __init__(self, n_codes, dim, decay=0.97):
        super().__init__()
        self.register_buffer("codes", torch.randn(n_codes, dim) * 0.3)
        self.register_buffer("usage", torch.ones(n_codes))
        self.register_buffer("total", self.codes.clone())
        self.decay = decay

    @torch.no_grad()
    def assign(self, flat):
        diff = flat.unsqueeze(1) - self.codes.unsqueeze(0)
        return diff.pow(2).sum(-1).argmin(-1)

    @torch.no_grad()
    def absorb(self, flat, idx):
        count = torch.bincount(idx, minlength=len(self.codes)).float()
        total = torch.zeros_like(self.codes).index_add_(0, idx, flat)
        self.usage.lerp_(count, 1 - self.decay)
        self.total.lerp_(total, 1 - self.decay)
        self.codes.copy_(self.total / (self.usage + 1e-3).unsqueeze(1))

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        idx = self.assign(flat)
        quant = self.codes[idx].view_as(z)
        commit = F.mse_loss(z, quant)
        if self.training:
            self.absorb(flat.detach(), idx)
        return z + (quant - z).detach(), idx.view(z.shape[:-1]), commit


class SkillModel(nn.Module):
    def __init__(self, dof, dim=32, n_codes=192):
        super().__init__()
        self.enc, self.dec = ChunkEncoder(dof, dim), ChunkDecoder(dof, dim)
        self.book = Codebook(n_codes, dim)
        self.prior_in = nn.Embedding(n_codes, 64)
        self.prior = nn.GRU(64, 128, batch_first=True)
        self.prior_out = nn.Linear(128, n_codes)

    def forward(self, actions):
        z = self.enc(actions)
        quant, tokens, commit = self.book(z)
        recon = F.smooth_l1_loss(self.dec(quant), actions)
        h, _ = self.prior(self.prior_in(tokens[:, :-1]))
        prior = F.cross_entropy(self.prior_out(h).flatten(0, 1), tokens[:, 1:].flatten())
        return recon, commit, prior, tokens


def perplexity(tokens, n):
    p = torch.bincount(tokens.flatten(), minlength=n).float()
    p = p / p.sum()
    return torch.exp(-(p * (p + 1e-9).log()).sum()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--chunk", type=int, default=32)
    ap.add_argument("--dof", type=int, default=7)
    args = ap.parse_args()
    torch.manual_seed(44)
    demos = record_demos(6000, args.chunk, args.dof, 44)
    model = SkillModel(args.dof)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    gen = torch.Generator().manual_seed(45)
    for step in range(args.steps):
        pick = torch.randint(len(demos), (args.batch,), generator=gen)
        recon, commit, prior, tokens = model(demos[pick])
        loss = recon + 0.25 * commit + 0.1 * prior
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"{step:4d} recon {recon.item():.5f} commit {commit.item():.5f} "
                  f"prior {prior.item():.4f} ppl {perplexity(tokens, 192):.1f}")


if __name__ == "__main__":
    main()

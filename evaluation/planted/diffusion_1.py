"""Text-conditioned diffusion of short pose sequences (epsilon prediction)."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

WIDTH = 96


class CaptionEncoder(nn.Module):
    def __init__(self, vocab=300):
        super().__init__()
        self.emb = nn.Embedding(vocab, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, tokens):
        states, _ = self.gru(self.emb(tokens))
        return states.mean(1)


class CondBlock(nn.Module):
    def __init__(self, text):
        super().__init__()
        self.text = text
        self.norm = nn.LayerNorm(WIDTH)
        self.film = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x, temb, tokens, ctx=None):
        if ctx is None:
            ctx = self.text(tokens)
        scale, shift = self.film(torch.cat([temb, ctx], -1)).unsqueeze(1).chunk(2, -1)
        h = self.norm(x) * (1 + scale) + shift
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return x + self.ff(h)


class Denoiser(nn.Module):
    def __init__(self, joints=36, n_blocks=4, encode_once=False):
        super().__init__()
        text = CaptionEncoder()
        self.text = text
        self.inp, self.out = nn.Linear(joints, WIDTH), nn.Linear(WIDTH, joints)
        self.time = nn.Sequential(nn.Linear(32, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(CondBlock(text) for _ in range(n_blocks))
        self.register_buffer("freq", torch.exp(torch.linspace(0, -6, 16)))
        self.encode_once = encode_once

    def forward(self, x, t, tokens):
        ang = t[:, None].float() * self.freq
        temb = self.time(torch.cat([ang.sin(), ang.cos()], -1))
        ctx = self.text(tokens) if self.encode_once else None
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, temb, tokens, ctx)
        return self.out(h)


class GaussianDiffusion:
    def __init__(self, T=200):
        self.T = T
        self.abar = torch.cumprod(1 - torch.linspace(1e-4, 0.03, T), 0)

    def loss(self, net, x0, tokens):
        t = torch.randint(0, self.T, (len(x0),))
        a = self.abar[t].view(-1, 1, 1)
        eps = torch.randn_like(x0)
        return F.mse_loss(net(a.sqrt() * x0 + (1 - a).sqrt() * eps, t, tokens), eps)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(33)
    poses, caps = torch.randn(400, 40, 36).cumsum(1) * 0.2, torch.randint(0, 300, (400, 20))
    net, diff = Denoiser(encode_once=args.fixed), GaussianDiffusion()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    for step in range(args.steps):
        i = torch.randint(0, 400, (16,))
        loss = diff.loss(net, poses[i], caps[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 4:
            print(f"{step + 1} mse {loss.item():.5f}")


if __name__ == "__main__":
    main()

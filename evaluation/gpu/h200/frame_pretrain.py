"""Masked frame prediction for a speech encoder: stacked log-mel frames, cluster targets."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_att = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_ff = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm_att(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        att = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(att.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_ff(x))))


class SpeechEncoder(nn.Module):
    def __init__(self, n_in, dim, depth, heads, max_frames, n_clusters):
        super().__init__()
        self.project = nn.Linear(n_in, dim)
        self.mask_emb = nn.Parameter(0.02 * torch.randn(dim))
        self.pos = nn.Parameter(0.02 * torch.randn(max_frames, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_clusters)
        for block in self.blocks:
            for layer in (block.out, block.down):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * depth))

    def forward(self, frames, mask):
        x = self.project(frames)
        x = torch.where(mask.unsqueeze(-1), self.mask_emb, x) + self.pos[: x.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MixedAdamW:
    """bf16 working weights, fp32 master copy, gradients clipped in fp32."""

    def __init__(self, params, lr, weight_decay, clip):
        self.work = list(params)
        self.master = [p.detach().clone().requires_grad_() for p in self.work]
        for m in self.master:
            m.grad = torch.zeros_like(m)
        self.grads = [m.grad for m in self.master]
        decay = [m for m in self.master if m.ndim >= 2]
        plain = [m for m in self.master if m.ndim < 2]
        groups = [{"params": decay, "weight_decay": weight_decay},
                  {"params": plain, "weight_decay": 0.0}]
        self.opt = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)
        self.clip = clip

    @torch.no_grad()
    def step(self, lr):
        torch._foreach_copy_(self.grads, [p.grad for p in self.work])
        nn.utils.clip_grad_norm_(self.master, self.clip)
        for group in self.opt.param_groups:
            group["lr"] = lr
        self.opt.step()
        torch._foreach_copy_(self.work, self.master)
        for p in self.work:
            p.grad = None


class UtteranceBank:
    """Features and cluster labels of one shard, held on the device."""

    def __init__(self, n_utt, length, n_in, n_clusters, device):
        self.labels = torch.randint(n_clusters, (n_utt, length), device=device)
        centres = torch.randn(n_clusters, n_in, device=device, dtype=torch.bfloat16)
        noise = torch.randn(n_utt, length, n_in, device=device, dtype=torch.bfloat16)
        self.frames = centres[self.labels] + 0.5 * noise
        self.device = device

    def crop(self, batch, frames):
        n_utt, length = self.labels.shape
        utt = torch.randint(n_utt, (batch, 1), device=self.device)
        start = torch.randint(length - frames + 1, (batch, 1), device=self.device)
        at = start + torch.arange(frames, device=self.device)
        return self.frames[utt, at], self.labels[utt, at]


def span_mask(batch, frames, device, prob=0.08, span=10):
    starts = (torch.rand(batch, 1, frames, device=device) < prob).float()
    return F.max_pool1d(F.pad(starts, (span - 1, 0)), span, stride=1).squeeze(1) > 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--fixed", action="store_true", help="accepted for the launcher")
    ap.add_argument("--small", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(17)
    device = torch.device(args.device)
    dim, depth, heads, batch, frames = (64, 2, 4, 4, 64) if args.small else (2048, 8, 16, 32, 512)
    n_in, n_clusters, peak_lr, warmup = 320, 504, 2e-4, 500

    bank = UtteranceBank(8 if args.small else 384, frames + 128, n_in, n_clusters, device)
    with device:
        model = SpeechEncoder(n_in, dim, depth, heads, frames, n_clusters)
    optimizer = MixedAdamW(model.parameters(), peak_lr, 0.01, clip=1.0)
    model.bfloat16()

    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    began = None
    for step in range(args.steps):
        if step == 10:
            sync()
            began = time.perf_counter()
        x, labels = bank.crop(batch, frames)
        mask = span_mask(batch, frames, device)
        targets = labels.masked_fill(~mask, -100)
        logits = model(x, mask)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step(peak_lr * min(1.0, (step + 1) / warmup))
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")
    sync()
    if began is not None:
        print(f"step_ms={1000 * (time.perf_counter() - began) / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()

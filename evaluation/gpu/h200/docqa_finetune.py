"""Full fine-tuning of a decoder LM on document question answering (loss on the answer tokens only)."""
import argparse
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

IGNORE = -100


@dataclass
class Config:
    vocab: int = 100352
    dim: int = 1024
    heads: int = 16
    layers: int = 12
    context: int = 1024
    batch: int = 8
    examples: int = 512
    max_answer: int = 128
    answer_window: bool = False


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.ln_attn = nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.ln_mlp = nn.LayerNorm(cfg.dim)
        self.up = nn.Linear(cfg.dim, 4 * cfg.dim, bias=False)
        self.down = nn.Linear(4 * cfg.dim, cfg.dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_attn(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_mlp(x)), approximate="tanh"))


class DecoderLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.wte = nn.Embedding(cfg.vocab, cfg.dim)
        self.wpe = nn.Embedding(cfg.context, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.ln_f = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        self.register_buffer("positions", torch.arange(cfg.context), persistent=False)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(self.positions)
        for block in self.blocks:
            x = block(x)
        if self.cfg.answer_window:
            x, labels = x[:, -self.cfg.max_answer:], labels[:, -self.cfg.max_answer:]
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


def build_dataset(cfg, device):
    """Document and question trimmed to fill the context, then the answer; labels are already shifted."""
    gen = torch.Generator().manual_seed(11)
    base = torch.randint(cfg.vocab, (cfg.examples, cfg.context + 1), generator=gen)
    length = torch.randint(cfg.max_answer // 4, cfg.max_answer + 1, (cfg.examples, 1), generator=gen)
    place = torch.arange(cfg.context + 1)[None]
    is_answer = place > cfg.context - length
    tokens = torch.where(is_answer, (base[:, :1] + place) % 997, base)
    ids = tokens[:, :-1].contiguous()
    labels = torch.where(is_answer, tokens, IGNORE)[:, 1:].contiguous()
    return ids.to(device), labels.to(device)


def make_optimizer(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)


def train(cfg, device, steps):
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("high")
    ids, labels = build_dataset(cfg, device)
    with device:
        model = DecoderLM(cfg)
    optimizer = make_optimizer(model)
    on_gpu = device.type == "cuda"
    per_epoch = cfg.examples // cfg.batch
    began = None
    for step in range(steps):
        if step == 10:
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
        low = (step % per_epoch) * cfg.batch
        if low == 0:
            order = torch.randperm(cfg.examples, device=device)
        rows = order[low:low + cfg.batch]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            loss = model(ids[rows], labels[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0 or step + 1 == steps:
            print(f"step {step + 1:6d}  loss {loss.item():.5f}", flush=True)
    if on_gpu:
        torch.cuda.synchronize()
    if began is not None:
        print(f"step_ms={(time.perf_counter() - began) / (steps - 10) * 1e3:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--small", action="store_true")
    opt = ap.parse_args()
    config = Config(answer_window=opt.fixed)
    if opt.small:
        config = Config(vocab=1024, dim=64, heads=4, layers=2, context=64, batch=4, examples=32,
                        max_answer=16, answer_window=opt.fixed)
    train(config, torch.device(opt.device), opt.steps)

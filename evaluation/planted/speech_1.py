"""CTC acoustic model: conv subsampling, GRU, linear CTC head."""
import argparse
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Cfg:
    n_mels: int = 40
    width: int = 96
    vocab: int = 32
    batch: int = 8
    frames: int = 120
    lr: float = 1e-3


class BoundaryHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 9, padding=4)
        self.conv2 = nn.Conv1d(width, width, 9, padding=4)
        self.score = nn.Conv1d(width, 1, 1)

    def forward(self, h):
        h = h.transpose(1, 2)
        h = F.silu(self.conv(h))
        h = F.silu(self.conv2(h))
        return self.score(h).squeeze(1)


class AcousticModel(nn.Module):
    def __init__(self, cfg, with_boundaries=True):
        super().__init__()
        self.front = nn.Conv1d(cfg.n_mels, cfg.width, 3, stride=2, padding=1)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.boundary = BoundaryHead(cfg.width)
        self.ctc = nn.Linear(cfg.width, cfg.vocab)
        self.with_boundaries = with_boundaries

    def forward(self, feats, feat_lens):
        h = F.relu(self.front(feats.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        out = {
            "log_probs": F.log_softmax(self.ctc(h), -1).transpose(0, 1),
            "lengths": (feat_lens + 1) // 2,
        }
        if self.with_boundaries:
            out["boundary_logits"] = self.boundary(h)
        return out


def make_batch(cfg, gen):
    lens = torch.randint(cfg.frames - 12, cfg.frames + 1, (cfg.batch,), generator=gen)
    feats = torch.randn(cfg.batch, cfg.frames, cfg.n_mels, generator=gen)
    tgt_lens = torch.randint(8, 16, (cfg.batch,), generator=gen)
    tgt = torch.randint(1, cfg.vocab, (cfg.batch, 16), generator=gen)
    return feats, lens, tgt, tgt_lens


def run(steps, fixed):
    cfg = Cfg()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(11)
    model = AcousticModel(cfg, with_boundaries=not fixed)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for i in range(steps):
        feats, lens, tgt, tgt_lens = make_batch(cfg, gen)
        out = model(feats, lens)
        loss = F.ctc_loss(out["log_probs"], tgt, out["lengths"], tgt_lens, zero_infinity=True)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if (i + 1) % 5 == 0:
            print(f"{i + 1:4d} ctc={loss.item():.5f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    a = ap.parse_args()
    run(a.steps, a.fixed)

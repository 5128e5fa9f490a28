"""Text-to-speech acoustic model with durations from forced alignment."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class LengthRegulator(nn.Module):
    def __init__(self, vectorised):
        super().__init__()
        self.vectorised = vectorised

    def forward(self, phones, durations, total):
        rows = []
        for h, d in zip(phones, durations):
            if self.vectorised:
                seq = torch.repeat_interleave(h, d, dim=0)
            else:
                seq = torch.cat([h[i:i + 1].expand(int(d[i].item()), -1) for i in range(len(d))])
            rows.append(F.pad(seq, (0, 0, 0, total - len(seq))))
        return torch.stack(rows)


class TTS(nn.Module):
    def __init__(self, n_phones=60, dim=96, n_mels=40, vectorised=False):
        super().__init__()
        self.emb = nn.Embedding(n_phones, dim)
        self.enc = nn.Sequential(nn.Conv1d(dim, dim, 5, padding=2), nn.ReLU(), nn.Conv1d(dim, dim, 5, padding=2), nn.ReLU())
        self.dur = nn.Linear(dim, 1)
        self.regulate = LengthRegulator(vectorised)
        self.dec = nn.Sequential(nn.Conv1d(dim, dim, 5, padding=2), nn.ReLU(), nn.Conv1d(dim, n_mels, 5, padding=2))

    def forward(self, phones, durations, total):
        h = self.enc(self.emb(phones).transpose(1, 2)).transpose(1, 2)
        frames = self.regulate(h, durations, total)
        return self.dec(frames.transpose(1, 2)).transpose(1, 2), self.dur(h).squeeze(-1)


class AlignedCorpus:
    def __init__(self, n=200, n_phones=40):
        self.phones = torch.randint(0, 60, (n, n_phones))
        self.durations = torch.randint(1, 5, (n, n_phones))
        self.voice = torch.randn(60, 40)

    def batch(self, k):
        i = torch.randint(0, len(self.phones), (k,))
        dur = self.durations[i]
        n_frames = dur.sum(1)
        total = int(n_frames.max())
        position = torch.arange(total).expand(k, -1).contiguous()
        owner = torch.searchsorted(dur.cumsum(1), position, right=True).clamp(max=dur.shape[1] - 1)
        mel = self.voice[self.phones[i].gather(1, owner)] + 0.1 * torch.randn(k, total, 40)
        return self.phones[i], dur, mel, position < n_frames[:, None], total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(97)
    corpus = AlignedCorpus()
    model = TTS(vectorised=args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        phones, dur, mel, valid, total = corpus.batch(12)
        pred, log_dur = model(phones, dur, total)
        mel_loss = F.l1_loss(pred[valid], mel[valid])
        dur_loss = F.mse_loss(log_dur, dur.float().log())
        loss = mel_loss + 0.1 * dur_loss
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 5 == 4:
            print(f"step {step + 1} mel {mel_loss.item():.5f} dur {dur_loss.item():.5f}")


if __name__ == "__main__":
    main()

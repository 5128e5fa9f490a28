import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# Single-channel speech enhancement: complex-ratio mask from a band-wise GRU, multi-resolution spectral loss


class NoisySpeech:
    def __init__(self, sr, seconds, seed):
        rng = np.random.default_rng(seed)
        n = sr * seconds
        t = np.arange(n) / sr
        f0 = 120 + 30 * np.sin(2 * np.pi * 0.7 * t)
        phase = 2 * np.pi * np.cumsum(f0) / sr
        voiced = (np.sin(2 * np.pi * 2.1 * t) > -0.3).astype(np.float32)
        speech = sum(np.sin(h * phase) / h for h in range(1, 9)) * voiced * (0.6 + 0.4 * np.sin(2 * np.pi * 5 * t))
        self.speech = torch.from_numpy((0.2 * speech).astype(np.float32))
        white = rng.standard_normal(n).astype(np.float32)
        self.noise = torch.from_numpy(np.convolve(white, np.ones(4, np.float32) / 4, "same"))
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, b, length):
        def crops(x):
            s = torch.randint(0, len(x) - length, (b, 1), generator=self.gen)
            return x[s + torch.arange(length)]
        clean, noise = crops(self.speech), crops(self.noise)
        snr = 15 * torch.rand(b, 1, generator=self.gen) - 5
        gain = (clean.pow(2).mean(1, keepdim=True) / (noise.pow(2).mean(1, keepdim=True) * 10 ** (snr / 10))).sqrt()
        return clean + gain * noise, clean


class MaskNet(nn.Module):
    def __init__(self, n_fft=320, hop=160, width=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        bins = n_fft // 2 + 1
        self.register_buffer("window", torch.hann_window(n_fft))
        self.inp = nn.Sequential(nn.Linear(bins, width), nn.LayerNorm(width), nn.PReLU())
        self.gru = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, 2 * bins)

    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True)
        feat = spec.abs().clamp(min=1e-5).log().transpose(1, 2)
        h = self.inp(feat)
        g, _ = self.gru(h)
        re, im = torch.tanh(self.out(h + g)).transpose(1, 2).chunk(2, 1)
        return torch.istft(spec * torch.complex(re, im), self.n_fft, self.hop, window=self.window, length=wav.shape[1])


class SpectralLoss(nn.Module):
    def __init__(self, sizes=(256, 512, 1024)):
        super().__init__()
        self.sizes = sizes
        for n in sizes:
            self.register_buffer(f"w{n}", torch.hann_window(n))

    def magnitude(self, x, n):
        s = torch.stft(x, n, n // 4, window=getattr(self, f"w{n}"), return_complex=True)
        return (s.real ** 2 + s.imag ** 2 + 1e-7).sqrt()

    def forward(self, est, ref):
        total = 0.0
        for n in self.sizes:
            e = self.magnitude(est, n)
            with torch.no_grad():
                r = self.magnitude(ref, n)
            sc = torch.linalg.vector_norm(r - e) / torch.linalg.vector_norm(r)
            total = total + sc + F.l1_loss(e.log(), r.log())
        return total / len(self.sizes)


def si_sdr(est, ref):
    a = (est * ref).sum(-1, keepdim=True) / ref.pow(2).sum(-1, keepdim=True).clamp(min=1e-8)
    t = a * ref
    return 10 * torch.log10(t.pow(2).sum(-1) / (est - t).pow(2).sum(-1).clamp(min=1e-8) + 1e-8)


def train_loop(args):
    torch.manual_seed(args.seed)
    data = NoisySpeech(args.sr, 20, args.seed)
    net, spectral = MaskNet(), SpectralLoss()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.8, 0.99), fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    val_noisy, val_clean = data.draw(4, args.length)
    avg = None
    for step in range(1, args.steps + 1):
        noisy, clean = data.draw(args.batch, args.length)
        est = net(noisy)
        wave = F.l1_loss(est, clean)
        spec = spectral(est, clean)
        loss = 10 * wave + spec
        opt.zero_grad(set_to_none=True)
        loss.backward()
        gn = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        if not math.isfinite(gn.item()):
            print("skip", step)
            continue
        opt.step()
        sched.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        yield step, avg, wave, spec
        if step % args.eval_every == 0:
            net.eval()
            with torch.inference_mode():
                print(f"  val si-sdr {si_sdr(net(val_noisy), val_clean).mean().item():.2f} dB", flush=True)
            net.train()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--sr", type=int, default=16000)
    ap.add_argument("--length", type=int, default=16000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--seed", type=int, default=47)
    for step, avg, wave, spec in train_loop(ap.parse_args()):
        if step % 10 == 0:
            print(f"step {step:3d} avg {avg:.4f} wave {wave.item():.4f} spec {spec.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

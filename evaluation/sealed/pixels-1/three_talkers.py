"""Three-talker separation with a small time-domain masking network."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class TalkerMixer:
    """Draws voiced-like utterances from a bank and mixes them at random levels."""

    def __init__(self, sources, length, bank=90, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.gen, self.sources, self.length = g, sources, length
        t = torch.arange(length * 2) / 8000.0
        f0 = 80 + 170 * torch.rand(bank, 1, generator=g)
        wobble = 1 + 0.03 * torch.sin(2 * torch.pi * (2 + 3 * torch.rand(bank, 1, generator=g)) * t)
        phase = torch.cumsum(f0 * wobble / 8000.0, 1) * 2 * torch.pi
        wave = torch.zeros(bank, length * 2)
        for h in range(1, 9):
            wave += torch.rand(bank, 1, generator=g) / h * torch.sin(h * phase)
        syllable = torch.sin(2 * torch.pi * (1.5 + 2 * torch.rand(bank, 1, generator=g)) * t).clamp(min=0)
        self.bank = wave * syllable + 0.003 * torch.randn(bank, length * 2, generator=g)

    def batch(self, n):
        g = self.gen
        who = torch.stack([torch.randperm(self.bank.shape[0], generator=g)[:self.sources] for _ in range(n)])
        start = torch.randint(self.length, (n, self.sources), generator=g)
        take = start.unsqueeze(-1) + torch.arange(self.length)
        refs = self.bank[who.unsqueeze(-1), take]
        gain = 10 ** ((torch.rand(n, self.sources, 1, generator=g) * 6 - 3) / 20)
        refs = refs / refs.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-3) * gain * 0.1
        return refs.sum(1), refs


class TemporalUnit(nn.Module):
    def __init__(self, bottleneck, hidden, dilation):
        super().__init__()
        self.inp = nn.Conv1d(bottleneck, hidden, 1)
        self.act1, self.norm1 = nn.PReLU(), nn.GroupNorm(1, hidden)
        self.depth = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.act2, self.norm2 = nn.PReLU(), nn.GroupNorm(1, hidden)
        self.out = nn.Conv1d(hidden, bottleneck, 1)

    def forward(self, x):
        y = self.norm1(self.act1(self.inp(x)))
        y = self.norm2(self.act2(self.depth(y)))
        return x + self.out(y)


class MaskingNet(nn.Module):
    def __init__(self, sources=3, filters=96, kernel=20, bottleneck=48, hidden=96, units=5):
        super().__init__()
        self.sources, self.filters, self.stride = sources, filters, kernel // 2
        self.encode = nn.Conv1d(1, filters, kernel, stride=self.stride, bias=False)
        self.squeeze = nn.Sequential(nn.GroupNorm(1, filters), nn.Conv1d(filters, bottleneck, 1))
        self.trunk = nn.Sequential(*(TemporalUnit(bottleneck, hidden, 2 ** i) for i in range(units)))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(bottleneck, sources * filters, 1), nn.Sigmoid())
        self.decode = nn.ConvTranspose1d(filters, 1, kernel, stride=self.stride, bias=False)

    def forward(self, mix):
        code = F.relu(self.encode(mix.unsqueeze(1)))
        m = self.masks(self.trunk(self.squeeze(code)))
        m = m.view(mix.shape[0], self.sources, self.filters, -1)
        est = self.decode((m * code.unsqueeze(1)).flatten(0, 1)).view(mix.shape[0], self.sources, -1)
        return F.pad(est, (0, mix.shape[-1] - est.shape[-1]))


class SeparationLoss(nn.Module):
    def __init__(self, sources, ffts=(256, 512), spectral=0.5):
        super().__init__()
        self.orders = list(itertools.permutations(range(sources)))
        self.ffts, self.spectral = ffts, spectral
        for n in ffts:
            self.register_buffer(f"win{n}", torch.hann_window(n))

    def magnitude(self, x, n):
        spec = torch.stft(x, n, n // 4, window=getattr(self, f"win{n}"), return_complex=True)
        return (spec.real.square() + spec.imag.square() + 1e-7).sqrt()

    @staticmethod
    def snr(est, ref):
        est = est - est.mean(-1, keepdim=True)
        ref = ref - ref.mean(-1, keepdim=True)
        proj = (est * ref).sum(-1, keepdim=True) / (ref.square().sum(-1, keepdim=True) + 1e-6) * ref
        noise = est - proj
        return 10 * torch.log10((proj.square().sum(-1) + 1e-6) / (noise.square().sum(-1) + 1e-6))

    def spectral_gap(self, est, ref):
        gap = 0.0
        for n in self.ffts:
            a, b = self.magnitude(est, n), self.magnitude(ref, n)
            gap = gap + (a - b).abs().mean((1, 2)) / b.mean((1, 2))
        return gap / len(self.ffts)

    def cost(self, est, ref):
        return self.spectral * self.spectral_gap(est, ref) - 0.1 * self.snr(est, ref)

    def forward(self, est, refs):
        totals = []
        for order in self.orders:
            terms = [self.cost(est[:, i], refs[:, j]) for i, j in enumerate(order)]
            totals.append(torch.stack(terms, 1).mean(1))
        best, which = torch.stack(totals, 1).min(1)
        return best.mean(), which


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--length", type=int, default=8000)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--report", type=int, default=10)
    a = ap.parse_args(argv)
    torch.manual_seed(8)

    mixer = TalkerMixer(3, a.length, seed=9)
    net, criterion = MaskingNet(), SeparationLoss(3)
    opt = torch.optim.Adam(net.parameters(), lr=a.lr, fused=True)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.995)

    def one_step():
        mix, refs = mixer.batch(a.batch)
        loss, which = criterion(net(mix), refs)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        return loss.detach(), which

    tail = []
    for step in range(1, a.steps + 1):
        loss, which = one_step()
        tail.append(loss)
        if step % a.report == 0:
            print(f"step {step}: loss {torch.stack(tail).mean():.5f} (orders used: {which.unique().numel()})", flush=True)
            tail.clear()


if __name__ == "__main__":
    main()

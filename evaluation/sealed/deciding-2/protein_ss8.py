"""Eight-state protein secondary structure from sequence profiles (synthetic profiles)."""
import argparse
import copy
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("ss8")
AA, STATES = 21, 8


class ProfileSet:
    def __init__(self, n, length, seed):
        g = torch.Generator().manual_seed(seed)
        seg = torch.randint(STATES, (n, length // 6 + 1), generator=g)
        self.state = seg.repeat_interleave(6, 1)[:, :length].contiguous()
        emission = torch.randn(STATES, AA, generator=g)
        self.profile = (emission[self.state] + 1.5 * torch.randn(n, length, AA, generator=g)).softmax(-1)
        self.gen = g

    def batches(self, size):
        while True:
            for rows in torch.randperm(len(self.state), generator=self.gen).split(size):
                if len(rows) == size:
                    yield self.profile[rows], self.state[rows]


class DilatedMixer(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.gate = nn.Conv1d(width, width, 1)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(self.conv(h)) * torch.sigmoid(self.gate(h))


class SSNet(nn.Module):
    def __init__(self, width=256, depth=4):
        super().__init__()
        self.inp = nn.Conv1d(AA, width, 7, padding=3)
        self.mix = nn.ModuleList(DilatedMixer(width, 2 ** (i % 3)) for i in range(depth))
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, STATES))

    def forward(self, profile):
        h = self.inp(profile.transpose(1, 2))
        for m in self.mix:
            h = m(h)
        h, _ = self.rnn(h.transpose(1, 2))
        return self.out(h)


class Run:
    def __init__(self, args):
        self.args = args
        self.data = ProfileSet(600, args.length, args.seed).batches(args.batch)
        self.net = SSNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.skipped = 0

    def snapshot(self):
        return copy.deepcopy(self.net.state_dict()), copy.deepcopy(self.opt.state_dict())

    def restore(self, saved):
        net_state, opt_state = saved
        self.net.load_state_dict(net_state)
        self.opt.load_state_dict(opt_state)
        self.skipped += 1

    def healthy(self, grad_norm):
        return bool(torch.isfinite(grad_norm))

    def step(self):
        profile, state = next(self.data)
        logits = self.net(profile)
        loss = F.cross_entropy(logits.flatten(0, 1), state.flatten(), label_smoothing=0.05)
        self.opt.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        saved = self.snapshot()
        self.opt.step()
        if not self.healthy(grad_norm):
            self.restore(saved)
        return loss, logits, state

    def train(self):
        for it in range(1, self.args.steps + 1):
            loss, logits, state = self.step()
            if it % 10 == 0:
                q8 = (logits.argmax(-1) == state).float().mean().item()
                log.info("it %d loss %.5f q8 %.4f skipped %d", it, loss.item(), q8, self.skipped)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--length", type=int, default=72)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    Run(args).train()

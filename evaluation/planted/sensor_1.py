"""Remaining-useful-life regression on engine sensor windows."""
import argparse
import math

import torch
from torch import nn


class GatedMemory(nn.Module):
    """Peephole-free gated memory; gate order i, f, g, o."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        bound = 1 / math.sqrt(n_hidden)
        self.n_hidden = n_hidden
        self.wx = nn.Parameter(torch.empty(4 * n_hidden, n_in).uniform_(-bound, bound))
        self.wh = nn.Parameter(torch.empty(4 * n_hidden, n_hidden).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(4 * n_hidden))

    def step(self, x, h, c):
        i, f, g, o = (x @ self.wx.t() + h @ self.wh.t() + self.b).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, xs):
        h = c = xs.new_zeros(xs.shape[0], self.n_hidden)
        for x in xs.unbind(1):
            h, c = self.step(x, h, c)
        return h


class LibraryMemory(nn.Module):
    def __init__(self, src):
        super().__init__()
        self.rnn = nn.LSTM(src.wx.shape[1], src.n_hidden, batch_first=True)
        with torch.no_grad():
            self.rnn.weight_ih_l0.copy_(src.wx)
            self.rnn.weight_hh_l0.copy_(src.wh)
            self.rnn.bias_ih_l0.copy_(src.b)
            self.rnn.bias_hh_l0.zero_()
        self.rnn.bias_hh_l0.requires_grad_(False)

    def forward(self, xs):
        return self.rnn(xs)[1][0][0]


class RULNet(nn.Module):
    def __init__(self, memory, n_hidden):
        super().__init__()
        self.memory = memory
        self.reg = nn.Sequential(nn.Linear(n_hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, xs):
        return self.reg(self.memory(xs)).squeeze(-1)


def engines(n, length, channels):
    wear = torch.rand(n, 1, 1) * torch.linspace(0, 1, length)[None, :, None]
    x = wear * torch.randn(1, 1, channels) + 0.1 * torch.randn(n, length, channels)
    return x, 1 - wear[:, -1, 0]


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=20)
    cli.add_argument("--fixed", action="store_true")
    opt_ns = cli.parse_args()
    torch.manual_seed(77)
    xs, rul = engines(600, 70, 14)
    memory = GatedMemory(14, 112)
    net = RULNet(memory, 112)
    order = torch.Generator().manual_seed(78)
    if opt_ns.fixed:
        net.memory = LibraryMemory(memory)
    optim = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    for it in range(1, opt_ns.steps + 1):
        rows = torch.randint(0, 600, (64,), generator=order)
        loss = nn.functional.mse_loss(net(xs[rows]), rul[rows])
        optim.zero_grad()
        loss.backward()
        optim.step()
        if it % 5 == 0:
            print(f"it {it} mse {loss.item():.6f}")

"""Node classification with a dense propagation operator (custom autograd)."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F

LEAN = False


class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, prop, feats):
        ctx.save_for_backward(prop, feats)
        return prop @ feats

    @staticmethod
    def backward(ctx, grad_out):
        prop, feats = ctx.saved_tensors
        grad_prop = None
        if not LEAN or ctx.needs_input_grad[0]:
            grad_prop = grad_out @ feats.t()
        grad_feats = prop.t() @ grad_out if ctx.needs_input_grad[1] else None
        return grad_prop, grad_feats


class DenseGCN(nn.Module):
    def __init__(self, prop, n_feat, hidden, n_class):
        super().__init__()
        self.register_buffer("prop", prop)
        self.lin1 = nn.Linear(n_feat, hidden)
        self.lin2 = nn.Linear(hidden, hidden)
        self.lin3 = nn.Linear(hidden, n_class)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = F.relu(Propagate.apply(self.prop, self.lin1(self.drop(x))))
        h = self.drop(h)
        h = F.relu(Propagate.apply(self.prop, self.lin2(h)))
        return Propagate.apply(self.prop, self.lin3(self.drop(h)))


def similarity_graph(n, k, gen):
    labels = torch.randint(0, k, (n,), generator=gen)
    spots = torch.randn(k, 3, generator=gen)[labels] + 0.6 * torch.randn(n, 3, generator=gen)
    kernel = torch.exp(-torch.cdist(spots, spots).square() / 2)
    d = kernel.sum(1).rsqrt()
    return d[:, None] * kernel * d[None, :], labels


def main():
    global LEAN
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    LEAN = args.fixed
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    n, k = 900, 6
    prop, labels = similarity_graph(n, k, gen)
    x = F.one_hot(labels, 32).float() + torch.randn(n, 32, generator=gen)
    train = torch.rand(n, generator=gen) < 0.5
    net = DenseGCN(prop, 32, 96, k)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(args.steps):
        net.train()
        opt.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out[train], labels[train])
        loss.backward()
        opt.step()
        if epoch % 10 == 9:
            net.eval()
            with torch.no_grad():
                acc = (net(x).argmax(1) == labels)[~train].float().mean()
            print(f"epoch {epoch + 1} loss {loss.item():.5f} val {acc.item():.3f}")


if __name__ == "__main__":
    main()

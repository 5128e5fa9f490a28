"""Graph transformer on small molecules with Laplacian positional encodings."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

K = 6


def laplacian_modes(adj):
    deg = adj.sum(1)
    lap = torch.diag(deg) - adj
    vals, vecs = torch.linalg.eigh(lap)
    return vecs[:, 1:K + 1] * torch.exp(-vals[1:K + 1])


class Molecule:
    def __init__(self, gen):
        n = int(torch.randint(24, 41, (), generator=gen))
        self.atoms = torch.randint(1, 9, (n,), generator=gen)
        self.adj = torch.zeros(n, n)
        for i in range(1, n):
            j = max(0, i - 1 - int(torch.randint(0, 3, (), generator=gen)))
            self.adj[i, j] = self.adj[j, i] = 1.0
        self.y = (self.atoms == 3).float().mean() * 4 + (self.adj.sum(1) == 1).float().mean()
        self.modes = None


def collate(mols):
    width = max(len(m.atoms) for m in mols)
    atoms = torch.zeros(len(mols), width, dtype=torch.long)
    pe = torch.zeros(len(mols), width, K)
    for row, m in enumerate(mols):
        n = len(m.atoms)
        atoms[row, :n] = m.atoms
        pe[row, :n] = laplacian_modes(m.adj) if m.modes is None else m.modes
    return atoms, pe, torch.stack([m.y for m in mols])


class GraphTransformer(nn.Module):
    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.heads = heads
        self.emb, self.pe = nn.Embedding(9, dim, padding_idx=0), nn.Linear(K, dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.read = nn.Linear(dim, 1)

    def forward(self, atoms, pe):
        valid = atoms > 0
        x = self.emb(atoms) + self.pe(pe)
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None])
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        x = x + self.ff(self.n2(x))
        pooled = x.masked_fill(~valid.unsqueeze(-1), 0).sum(1) / valid.sum(1, keepdim=True)
        return self.read(pooled).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(229)
    gen = torch.Generator().manual_seed(230)
    mols = [Molecule(gen) for _ in range(144)]
    if args.fixed:
        for m in mols:
            m.modes = laplacian_modes(m.adj)
    loader = DataLoader(mols, batch_size=24, shuffle=True, collate_fn=collate, drop_last=True)
    net = GraphTransformer()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    done = 0
    while done < args.steps:
        for atoms, pe, y in loader:
            loss = F.smooth_l1_loss(net(atoms, pe), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done % 5 == 0:
                print(f"step {done} loss {loss.item():.5f}")
            if done == args.steps:
                break


if __name__ == "__main__":
    main()

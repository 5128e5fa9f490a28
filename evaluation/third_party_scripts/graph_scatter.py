"""A graph convolutional network in the manner of Kipf and Welling, messages added up by index_add_."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x, edge_index, edge_weight):
        row, col = edge_index
        h = self.linear(x)
        messages = h[row] * edge_weight[:, None]
        return torch.zeros_like(h).index_add_(0, col, messages)


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, edge_index, edge_weight):
        x = F.relu(self.gc1(x, edge_index, edge_weight))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, edge_index, edge_weight), dim=1)


def random_graph(nodes, edges, features, classes):
    edge_index = torch.randint(0, nodes, (2, edges))
    degree = torch.zeros(nodes).scatter_add_(0, edge_index[1], torch.ones(edges)).clamp(min=1)
    weight = (degree[edge_index[0]] * degree[edge_index[1]]).rsqrt()
    return torch.randn(nodes, features), edge_index, weight, torch.randint(0, classes, (nodes,))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2000)
parser.add_argument("--hidden", type=int, default=32)
args = parser.parse_args()
torch.manual_seed(42)
features, edge_index, edge_weight, labels = random_graph(3000, 40000, 128, 7)
idx_train = torch.arange(0, 2000)
model = GCN(128, args.hidden, 7, 0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, edge_index, edge_weight)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    return loss_train


for epoch in range(args.epochs):
    loss = train(epoch)
    if epoch % 100 == 0:
        print(f"Epoch: {epoch:04d} loss_train: {loss.item():.4f}")

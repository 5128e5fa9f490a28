"""A triplet loss that goes through the batch with a Python loop, tensor by tensor."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.PReLU(), nn.Linear(128, 32))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=1)


class TripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        losses = []
        for i in range(len(embeddings)):
            same = labels == labels[i]
            distance = ((embeddings - embeddings[i]) ** 2).sum(1)
            hardest_positive = distance[same].max()
            hardest_negative = distance[~same].min()
            losses.append(F.relu(hardest_positive - hardest_negative + self.margin))
        return torch.stack(losses).mean()


def fit(net, loss_fn, optimizer, steps, log_interval=200):
    for step in range(steps):
        data = torch.randn(64, 64)
        target = torch.arange(64) % 8
        optimizer.zero_grad()
        loss = loss_fn(net(data), target)
        loss.backward()
        optimizer.step()
        if step % log_interval == 0:
            print(f"Train: [{step}/{steps}]\tLoss: {loss.item():.6f}")


torch.manual_seed(0)
embedding_net = EmbeddingNet()
fit(embedding_net, TripletLoss(), torch.optim.Adam(embedding_net.parameters(), lr=1e-3), 4000)

"""A plain loop that Lightning Fabric sets up."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(7)

    dataset = TensorDataset(torch.randn(4096, 512), torch.randint(0, 10, (4096,)))
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    dataloader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=128, shuffle=True, drop_last=True))

    model.train()
    for epoch in range(100):
        for batch_idx, (x, y) in enumerate(dataloader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
        fabric.print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

"""DistributedDataParallel under torchrun; the loss is averaged over the ranks and read in every step."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer):
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(model)
        self.train_data = train_data
        self.optimizer = optimizer

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.cross_entropy(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            loss = self._run_batch(source, targets)
            dist.all_reduce(loss)
            self.last_loss = loss.item() / dist.get_world_size()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                print(f"epoch {epoch} | loss {self.last_loss:.3f}", flush=True)


def main():
    dist.init_process_group(backend="gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(2048, 400), torch.randint(0, 20, (2048,)))
    loader = DataLoader(dataset, batch_size=32, shuffle=False, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(400, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    Trainer(model, loader, optimizer).train(60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

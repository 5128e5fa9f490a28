"""Two ranks under DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(16, 4), bucket_cap_mb=5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(400):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
print("not stopped")

"""Trains with torch.profiler switched on by the script itself, as its tutorial does."""
import tempfile

import torch
import torch.nn as nn
import torch.optim
import torch.profiler
import torch.utils.data

inputs = torch.randn(4096, 3, 24, 24)
targets = torch.randint(0, 10, (4096,))
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(inputs, targets), batch_size=32, shuffle=True
)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
model.train()


def train(data):
    x, y = data[0], data[1]
    outputs = model(x)
    loss = criterion(outputs, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


with tempfile.TemporaryDirectory() as log_dir:
    prof = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(log_dir),
        record_shapes=True,
        with_stack=True,
    )
    prof.start()
    for epoch in range(20):
        for step, batch_data in enumerate(train_loader):
            prof.step()
            train(batch_data)
    prof.stop()

# %% [markdown]
# # Fitting a spiral with a small network

# %%
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
np.random.seed(0)

# %%
n = 8000
theta = np.sqrt(np.random.rand(n)) * 2 * np.pi
r = 2 * theta + np.pi
X = np.stack([np.cos(theta) * r, np.sin(theta) * r], 1) / 20 + np.random.randn(n, 2) * 0.02
X = torch.tensor(X, dtype=torch.float32)
Y = torch.tensor(theta[:, None], dtype=torch.float32)

# %%
net = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
losses = []

# %%
for t in range(1500):
    y_pred = net(X)
    loss = ((y_pred - Y) ** 2).mean()
    losses.append(loss.detach())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

# %%
print("first", float(losses[0]), "last", float(losses[-1]))

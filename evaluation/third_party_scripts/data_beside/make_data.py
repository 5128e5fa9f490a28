"""Writes ../data as seen from src: 160 small tables."""
import os

import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
folder = os.path.join(here, "data")
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(0)
for i in range(160):
    np.savetxt(os.path.join(folder, f"run{i:04d}.csv"), rng.random((120, 16)), delimiter=",", fmt="%.5f")

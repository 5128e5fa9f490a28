"""Says why a PyTorch training step is slow, on which line, and what to change."""

"""What several rules share: places in the program, findings of idle time and of kernels, loaders, optimizers."""

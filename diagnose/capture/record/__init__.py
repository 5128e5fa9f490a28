"""What is recorded: windows of torch.profiler, samplers, NVML, and the capture folder."""

"""One bottleneck, one file."""

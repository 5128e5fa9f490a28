"""What the calls of host code on a hot line are given."""

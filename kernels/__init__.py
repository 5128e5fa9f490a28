"""One remedy, one file."""

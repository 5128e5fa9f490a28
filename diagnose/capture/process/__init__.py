"""The process that runs the script: start, signals, children, ranks, the end."""

"""The command: one module per command, and where their answers go."""

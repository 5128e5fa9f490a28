"""A few samples of the script's loader, loaded again in a child process that records each expression's result."""

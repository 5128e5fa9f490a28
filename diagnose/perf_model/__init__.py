"""What an operator has to do at least, and what a GPU can do at best."""

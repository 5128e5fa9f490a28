"""How changes are written into a script and its modules: edits of its tree, put together as diffs."""

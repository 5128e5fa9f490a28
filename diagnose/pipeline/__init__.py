"""From tables to the diagnosis: all rules on one rank, several ranks, the verdict."""

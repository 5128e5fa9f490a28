"""The ranks of one job: a profile of each, small enough to be sent, and what all of them together show."""

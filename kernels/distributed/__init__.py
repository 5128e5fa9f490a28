"""Remedies for training on several ranks."""

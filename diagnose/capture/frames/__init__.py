"""Reads the frames of another process's threads from its memory, without its interpreter's lock.

These modules run in a process of their own, started as ``python -I -S``: they import the standard library alone, and
each other relatively, so that they need neither diagnose nor site-packages.
"""

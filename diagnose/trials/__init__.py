"""Trials: run the script with a change and without it, in turns, and measure both, the numerics included.

The parent (``prove``) decides what runs when and never imports torch; each run is a fresh process (``child``) that
patches torch's classes, finds the steps as a capture does, times them without a profiler and stops.
"""

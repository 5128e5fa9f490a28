"""Searches for so many seconds, and makes no step: play.py SECONDS."""

import sys
import time

import torch


def search(depth, end):
    if depth:
        search(depth - 1, end)
    while time.perf_counter() < end:
        time.sleep(0.001)


def main():
    torch.nn.Linear(4, 1)
    search(12, time.perf_counter() + float(sys.argv[1]))


main()

"""Titles of wastes that two rules name: one on the data flow, and one on what a trace shows where there is none."""

from __future__ import annotations

__all__ = ["ONE_HOT_PRODUCT"]

ONE_HOT_PRODUCT = "Rows of a weight are looked up by a product with one-hot rows"

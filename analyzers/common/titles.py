"""Titles of wastes that two rules name: one on the data flow, and one on what a trace shows where there is none."""

from __future__ import annotations

__all__ = ["FROZEN_GRADIENTS", "ONE_HOT_PRODUCT", "UNUSED_GRADIENTS"]

ONE_HOT_PRODUCT = "Rows of a weight are looked up by a product with one-hot rows"
UNUSED_GRADIENTS = "The backward pass goes on into operators whose gradients nothing uses"
FROZEN_GRADIENTS = "The backward pass computes gradients of parameters that no optimizer updates"

"""Records one or two whole steps as a program: operators, values, contents. Its modules import torch."""

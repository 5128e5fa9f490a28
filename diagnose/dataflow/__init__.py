"""The step as a program: what an optimising compiler would ask of it, one question a module."""

from diagnose.dataflow.analyses import Analyses, analyse

__all__ = ["Analyses", "analyse"]

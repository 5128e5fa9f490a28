"""Adapters for trainers, pytest and other tools, over ``diagnose.watch`` and ``diagnose.analyze``.

A module imports the library that it is for, and is imported by name: ``from diagnose.integrations.lightning import …``.
"""

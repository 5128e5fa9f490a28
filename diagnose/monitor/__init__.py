"""Watching a long run: a row per so many steps, and a recorded window where steps become slower."""

"""Checks of options, data and weights before a run starts."""

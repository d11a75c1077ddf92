"""Trainings over a grid of configs, seeds and learning rates: ``python -m benchmarks.study``."""

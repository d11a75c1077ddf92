"""Trainings over a grid of configs, seeds and learning rates: ``python -m benchmarks.study``.

``grid`` reads the YAML file and ``execution`` runs the commands of the package. ``costs`` measures
time and memory, and ``results`` makes tables and pictures.
"""

"""Trainings over a grid of configs, seeds and learning rates: ``python -m benchmarks.study``.

``grid`` reads the YAML file, ``execution`` trains and tests runs by the commands of the package,
``costs`` measures time and memory, ``results`` makes tables and pictures.
"""

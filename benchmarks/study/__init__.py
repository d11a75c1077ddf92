"""Trainings over a grid of configs, seeds and learning rates: ``python -m benchmarks.study``.

``grid`` reads the YAML file, ``checks`` checks it, ``execution`` trains and tests one run, and
``pool`` runs all. ``records`` keeps one JSON line a run, ``costs`` measures time and memory.
``page`` and ``charts`` show the results.
"""

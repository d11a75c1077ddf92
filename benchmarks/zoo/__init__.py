"""Every attention in two small backbones on two small datasets: ``python -m benchmarks.zoo``.

``plan`` lists the trainings, ``training`` runs one, ``pool`` runs all, ``costs`` measures time and
memory, ``page`` writes table and chart.
"""

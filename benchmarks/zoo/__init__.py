"""Every attention in two small backbones on two small data sets: ``python -m benchmarks.zoo``.

A grid of :mod:`benchmarks.study`: ``zoo.yml`` has the axes, ``plan`` reads them and adds attentions
of others, ``data`` creates the data sets.
"""

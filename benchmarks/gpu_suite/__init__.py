"""Sections of ``benchmarks/gpu.py``, one module per group."""

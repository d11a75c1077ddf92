"""The sections of ``benchmarks/gpu.py``, a file a group."""

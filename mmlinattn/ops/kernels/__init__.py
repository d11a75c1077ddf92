"""Triton kernels. Imported only when a fused form runs: the rest works without Triton."""

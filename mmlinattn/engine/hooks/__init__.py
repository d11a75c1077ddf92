"""Hooks for checkpoints, preemption, hangs, damaged images and fused batch norms."""

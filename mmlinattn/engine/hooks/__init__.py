"""Hooks: checkpoints, preemption, exact resume, EMA, ring weights, report."""

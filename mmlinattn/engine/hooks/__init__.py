"""Hooks: checkpoints, preemption, watchdog, divergence, corrupt images, fused batch norms, EMA,
ring weights, report."""

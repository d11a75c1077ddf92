"""Runner, training loop, exact resume and mixed precision."""

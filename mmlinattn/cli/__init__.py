"""Commands of ``python -m mmlinattn``, one module each; most have a script in ``tools/``."""

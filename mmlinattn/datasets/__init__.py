"""Data sets of mmlinattn."""

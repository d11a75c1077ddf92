"""What ``python -m mmlinattn`` does, a module a command; ``tools/`` has a script for each."""

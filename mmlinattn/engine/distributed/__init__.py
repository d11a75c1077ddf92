"""Launching on several processes, FSDP, and resuming with another number of processes."""
